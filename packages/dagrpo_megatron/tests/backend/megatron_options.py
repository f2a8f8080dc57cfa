"""Prints the options of Megatron-LM's parser, one a line. A script for the Python of its environment: `megatron_options.py SOURCE`."""

import argparse
import os
import sys
import typing
from typing import Any

from typing_extensions import override


def line(action: argparse.Action) -> str:
    """Return names, action, type, number of values and choices of an option, with tabs between them."""
    kind = {"_StoreAction": "store", "_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false"}
    name = type(action).__name__
    of = action.type.__name__ if isinstance(action.type, type) else ""
    names = action.option_strings[:1] if name == "BooleanOptionalAction" else action.option_strings
    count = "" if action.nargs in (None, 0) else str(action.nargs)
    return "\t".join(
        [
            " ".join(names),
            kind.get(name, name),
            of,
            count,
            " ".join(str(getattr(each, "name", each)) for each in action.choices or ()),
        ]
    )


def main() -> None:
    """Print them after the line OPTIONS: an import may print, too."""
    typing.override = override  # type: ignore[attr-defined]  # Python 3.11 has none
    os.chdir(sys.argv[1])
    sys.path[0] = sys.argv.pop()
    from megatron.inference.utils import add_inference_args
    from megatron.training.arguments import parse_args

    parse = argparse.ArgumentParser.parse_args

    def spied(self: argparse.ArgumentParser, *given: Any, **options: Any) -> Any:
        print("OPTIONS")
        print("\n".join(line(each) for each in self._actions if each.option_strings and each.dest != "help"))
        return parse(self, *given, **options)

    argparse.ArgumentParser.parse_args = spied  # type: ignore[method-assign]
    parse_args(extra_args_provider=add_inference_args)


if __name__ == "__main__":
    main()
