"""GRPO post-training of language models as one reproducible DAG."""
