"""Checkpoint folders: what makes one whole, and the exact way from one format to another."""
