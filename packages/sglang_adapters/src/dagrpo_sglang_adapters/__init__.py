"""What SGLang 0.5.23 does not tell of the LoRA adapters that it serves."""
