"""Files between a training run and verl (arXiv 2409.19256), version 0.9.1."""
