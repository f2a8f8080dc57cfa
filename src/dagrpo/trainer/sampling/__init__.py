"""Sampling of each step's rollouts, on rank 0."""
