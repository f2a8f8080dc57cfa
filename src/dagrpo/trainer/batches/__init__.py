"""Packed micro-batches of rollouts, within limits of memory."""
