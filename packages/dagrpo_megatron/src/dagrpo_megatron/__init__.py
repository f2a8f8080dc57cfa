"""Reader and writer of Megatron-LM's `torch_dist` checkpoints.

They need neither Megatron, a GPU nor a process group.
"""
