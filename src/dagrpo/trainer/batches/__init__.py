"""From sampled prompts to packed micro-batches."""
