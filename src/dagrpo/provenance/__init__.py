"""Which stage made which file out of which: records beside the outputs, and the runs that MLflow remembers."""
