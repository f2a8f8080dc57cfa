"""The arguments that are written for Megatron-LM, as its own parser takes them: that of the stand-in."""

from collections.abc import Sequence
from typing import Any

from packages.dagrpo_megatron.tests.backend.stand_in.megatron.training.arguments import parser_of_megatron_lm


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what is given, by name. SystemExit, as Megatron-LM itself would: an argument that it does not have, or of another type."""
    parser = parser_of_megatron_lm()
    defaults = vars(parser.parse_args([]))
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if value != defaults[name]}
