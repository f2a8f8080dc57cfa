"""Number of threads of a stage's processes, equal on every machine.

A sum split among more threads is rounded differently, and the trained policy would differ. Snakemake scales a rule's `threads`
down to --cores and passes that number to libraries; in a stage run by hand, they use all of the machine's.
"""

import os

READ_BY_LIBRARIES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def fix_threads(count: int) -> None:
    """Set the thread count of libraries imported after this, in this process and its children.

    It may exceed the cores that this process has: the result counts, not the speed.
    """
    os.environ.update(dict.fromkeys(READ_BY_LIBRARIES, str(count)))
