"""Snakemake's side of the pipeline, and its private records."""
