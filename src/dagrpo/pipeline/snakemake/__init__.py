"""Snakemake and DVC: their shared parts, and consistency between them."""
