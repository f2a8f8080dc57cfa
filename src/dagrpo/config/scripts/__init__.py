"""Scripts of verl and Megatron-LM as presets."""
