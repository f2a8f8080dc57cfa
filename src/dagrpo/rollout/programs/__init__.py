"""External programs that make attempts: start, watch, end, input and report.

gateway/ connects them to the policy; agents/ has the programs.
"""

from pathlib import Path


def verifiers_worker_path() -> Path:
    """Return the worker's path. It is run, never imported: its packages are in another environment."""
    return Path(__file__).with_name("verifiers_worker.py")
