"""Files between a training run and Megatron-LM's examples/rl, commit d98e8a6."""
