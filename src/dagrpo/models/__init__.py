"""Initial policies: fresh tiny models, GGUF files, and hub models."""
