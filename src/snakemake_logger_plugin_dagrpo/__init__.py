"""What a person sees while Snakemake runs this workflow: stages that start and end, and one panel when something failed.

Snakemake finds this package by its name and imports it whenever it starts, before the Snakefile says whose code runs: so
nothing here imports dagrpo. What the two share is the form of the files in `.state/failures`.
"""

from snakemake_logger_plugin_dagrpo.handler import LogHandler

__all__ = ["LogHandler"]
