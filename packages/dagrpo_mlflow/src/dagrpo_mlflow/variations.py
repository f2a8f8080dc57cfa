"""Variations of an experiment: override runs and DVC's named experiments.

They are recorded in the MLflow experiment of the same name, under a separate parent run. Runs of DVC in a temporary copy of the
repository are recorded in the repository itself: the copy is removed afterwards.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.pipeline.override_runs import TRY

DVC_NAME = "DVC_EXP_NAME"  # set by `dvc exp run`
DVC_ROOT = "DVC_ROOT"  # the repository, also where a stage runs in a temporary copy of it


def experiment_name(record: Mapping[str, Any]) -> str:
    """Return the experiment that an execution belongs to; its folders may be those of an override run."""
    return str(record["experiment"]).partition(TRY)[0]


def variation_name(folder: str) -> str:
    """Return the name of the variation that this process runs in an experiment's folders; empty: the experiment itself."""
    _, is_try, digest = folder.partition(TRY)
    return f"override {digest}" if is_try else os.environ.get(DVC_NAME, "")


def recording_root(folder: Path) -> Path:
    """Return the project folder whose history records the runs in `folder`."""
    main = os.environ.get(DVC_ROOT)
    return Path(main) if main and os.environ.get(DVC_NAME) and Path(main).is_dir() else folder
