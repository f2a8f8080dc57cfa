"""Agents of dagrpo beside its own loop: programs, and environments. README.md lists them."""
