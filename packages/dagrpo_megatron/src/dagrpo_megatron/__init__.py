"""Megatron-LM's `torch_dist` checkpoints, written and read without Megatron, a GPU or a process group."""
