"""Measures how a cost grows and prints its table.

python -m benchmarks.scale planning --help        # and so for each module beside this one
"""

import importlib
import sys
from pathlib import Path

PARTS = ("__init__", "__main__", "engine", "long_answers", "measuring")  # of the others
MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in PARTS)


def main() -> None:
    """Run the module that the first argument names. Raises SystemExit listing them if it names none."""
    name, *arguments = sys.argv[1:] or [""]
    if name not in MODULES:
        raise SystemExit(f"{__doc__}\nModules: {', '.join(MODULES)}")
    print(importlib.import_module(f"benchmarks.scale.{name}").table(arguments))


if __name__ == "__main__":
    main()
