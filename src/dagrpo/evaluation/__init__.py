"""Sampling on the test split, scoring of what was sampled, and the statistics behind every reported number."""
