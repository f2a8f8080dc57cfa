"""Why a stage would run again: what has changed since its outputs were made, read from records alone.

Snakemake decides what runs; this explains, in seconds and without planning. Nothing here writes.
"""
