"""Metrics of a step, and its times."""
