"""Terminal output of this workflow's Snakemake runs.

Stages that start and end, and one panel after a failure. Snakemake finds this package by its name and imports it whenever it starts,
before the Snakefile says whose code runs: so nothing here imports dagrpo. The two share the form of the files in `.state/failures`.
"""

from snakemake_logger_plugin_dagrpo.handler import LogHandler

__all__ = ["LogHandler"]
