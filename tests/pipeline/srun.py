#!/usr/bin/env python3
"""A stand-in for `srun`: tasks of one machine, of which one that fails ends the others (`--kill-on-bad-exit`)."""

import os
import subprocess
import sys
import time

options = [word for word in sys.argv[1:] if word.startswith("--")]
first = next(place for place, word in enumerate(sys.argv[1:], start=1) if not word.startswith("--"))
print(next(word for word in options if word.startswith("--nodelist=")), flush=True)
count = int(next(word for word in options if word.startswith("--ntasks=")).partition("=")[2])
tasks = [subprocess.Popen(sys.argv[first:], env=os.environ | {"SLURM_PROCID": str(number)}) for number in range(count)]
while None in (codes := [task.poll() for task in tasks]) and not any(codes):
    time.sleep(0.1)
for task in tasks:
    if any(codes):
        task.kill()
sys.exit(max(abs(task.wait()) for task in tasks))
