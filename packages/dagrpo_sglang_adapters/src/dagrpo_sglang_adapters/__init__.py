"""SGLang plugin: reports digests of served LoRA adapters."""
