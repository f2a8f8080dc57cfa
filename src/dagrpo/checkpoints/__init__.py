"""Checkpoint folders: integrity, and exact conversion between formats."""
