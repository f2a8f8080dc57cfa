"""Evaluation: sampling on test splits, scoring, and statistics."""
