"""Runs one stage of the DAG: `stage.py --job .state/jobs/train-....json --seed 0 ...`. The rules write the command line."""

import sys

from dagrpo.execution.supervisor import main

if __name__ == "__main__":
    main(sys.argv[1:])
