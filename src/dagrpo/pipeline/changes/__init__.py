"""Reasons why a stage would run again, read from records alone.

Snakemake decides what runs; this explains, in seconds and without planning. Nothing is written.
"""
