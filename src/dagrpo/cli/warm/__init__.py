"""Compiles the kernels of an experiment's server before any stage runs."""
