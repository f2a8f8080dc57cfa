"""Closed schema of params.yaml, with one small module per section.

So a stage depends on its own sections alone.
"""
