"""Sampling: prompts, agents, the SGLang engine, and tables of graded trajectories."""
