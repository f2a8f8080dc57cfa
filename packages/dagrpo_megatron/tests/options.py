"""The arguments that are written for Megatron-LM, as its own parser takes them: names, types and choices of the stand-in's table."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

OPTIONS = Path(__file__).with_name("backend") / "stand_in/megatron/training/options.tsv"
TYPES: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float}


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Values by name. SystemExit, as Megatron-LM itself would: an argument that it does not have, or of another type."""
    parser = ArgumentParser(allow_abbrev=False)
    for line in OPTIONS.read_text().splitlines():
        names, action, kind, count, choices = line.split("\t")
        if action != "store":
            parser.add_argument(*names.split(), action="store_true")
            continue
        of = TYPES.get(kind, str)
        several = int(count) if count.isdigit() else count or None
        parser.add_argument(*names.split(), type=of, nargs=several, choices=[*map(of, choices.split())] or None)
    values = vars(parser.parse_args(arguments))
    return {name: value for name, value in values.items() if value is not None and value is not False}
