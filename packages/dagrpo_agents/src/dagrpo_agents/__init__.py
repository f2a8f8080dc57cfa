"""Agents beside dagrpo's own loop: programs, and environments."""
