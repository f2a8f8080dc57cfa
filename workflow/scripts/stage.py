"""The command line of every stage: `python workflow/scripts/stage.py --help`."""

import sys
from pathlib import Path

from own_code import use_code_of

if __name__ == "__main__":
    use_code_of(Path(__file__).resolve().parents[2])
    from dagrpo.execution.supervisor import main

    main(sys.argv[1:])
