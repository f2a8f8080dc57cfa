"""Runs one stage of the DAG: `stage.py --job .state/jobs/train-....json --seed 0 ...`. The rules write the command line."""

import signal
import sys

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an import: the stage's frame listens to Ctrl-C
    from dagrpo.execution.supervisor import main

    main(sys.argv[1:])
