"""What a shell is offered when a command's argument is completed. Imports nothing, as it runs at every press of a key."""

from pathlib import Path


def experiments(incomplete: str) -> list[str]:
    """The experiments that have results in this folder."""
    return sorted(path.name for path in Path("results").glob("*/") if path.name.startswith(incomplete))
