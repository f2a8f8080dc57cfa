"""Sampling: prompts, agents, and tables of graded trajectories."""
