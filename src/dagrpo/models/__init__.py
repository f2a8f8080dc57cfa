"""The policy before any training: a fresh tiny model, a GGUF file, or a model of the Hugging Face hub."""
