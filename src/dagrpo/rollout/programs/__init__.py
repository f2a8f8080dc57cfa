"""Other people's programs: how one is started, watched and ended, what it is told of a problem, and what it may report.

Not here: how it talks to the policy (gateway/), and which programs there are (agents/).
"""

from pathlib import Path


def verifiers_worker_path() -> Path:
    """The worker is run, never imported: its packages are in another environment."""
    return Path(__file__).with_name("verifiers_worker.py")
