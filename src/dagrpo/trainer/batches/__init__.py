"""Rollouts, prompt sampling and packed micro-batches."""
