"""Policy losses and divergences per token, one small file each."""
