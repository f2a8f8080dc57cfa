"""How many threads a process of a stage computes with: so many as its stage says, on every machine.

A sum that is split among more threads is rounded differently, and the policy that is trained is another one. Snakemake
scales a rule's `threads` down to --cores and hands that number to libraries; by hand, they take all of the machine's.
"""

import os

from dagrpo.execution.declaration import Stage
from dagrpo.params.runtime import Runtime

READ_BY_LIBRARIES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def threads_of(stage: Stage, runtime: Runtime) -> int:
    """The threads of each process: its share of what the stage declares."""
    return max(1, stage.needs(runtime).threads // stage.processes(runtime))


def fix_threads(count: int) -> None:
    """Give libraries that are imported after this, in this process and those that it starts, so many threads.

    They may exceed the cores that this process has: the result counts, not the speed.
    """
    os.environ.update(dict.fromkeys(READ_BY_LIBRARIES, str(count)))
