"""The command line of every stage: `python workflow/scripts/stage.py --help`."""

import os
import signal
import sys

if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no library may ask the terminal, nor read an answer from a pipe
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import: the stage's frame listens to Ctrl-C

from pathlib import Path

from own_code import use_code_of

if __name__ == "__main__":
    use_code_of(Path(__file__).resolve().parents[2])
    from dagrpo.utils.watchdog import stop_with_the_workflow

    stop_with_the_workflow()  # before the imports, which take seconds
    from dagrpo.pipeline.supervisor import main

    main(sys.argv[1:])
