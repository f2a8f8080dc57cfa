"""Whether DVC's cache holds what a stage has made, and why it does not.

Where a file cannot be stored, for want of room above all, DVC logs it and goes on as if it had been: dvc.lock then names what
nobody has. Not here: which stages are recorded, and when (recording.py).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrpo.errors import UserError
from dagrpo.full_disk import about_room, no_room

TRANSFERS = logging.getLogger("dvc_data.hashfile.transfer")


def store(stage: Any) -> None:
    """Put the outputs of DVC's stage into its cache. UserError: the cache does not hold all of them afterwards."""
    with _failures() as failures:
        ended_well = _stored(stage, failures)
    if ended_well and not any(output.use_cache and _is_not_cached(output) for output in stage.outs):
        return
    cache = Path(stage.repo.cache.local.path)
    error = next((failure for failure in failures if isinstance(failure, OSError)), None)
    if error is not None and no_room(error):
        raise UserError(about_room(OSError(error.errno, error.strerror, str(cache))))
    reason = (error and error.strerror) or "no reason given"
    raise UserError(
        f"{cache} does not take what was made ({reason}): see that it is a folder that you can write to, then run again."
    )


def _stored(stage: Any, failures: list[BaseException]) -> bool:
    """False where something ended it, such as a cache that is no folder, or a full disk; that is added to the failures."""
    try:
        stage.save()
        stage.commit(relink=False)
    except OSError as error:
        failures.append(error)
        return False
    return True


def _is_not_cached(output: Any) -> bool:
    try:
        return bool(output.changed_cache())
    except OSError:  # the cache cannot even be looked into
        return True


@contextmanager
def _failures() -> Iterator[list[BaseException]]:
    """What DVC would log, a line and more for each file."""
    kept = _Kept()
    propagates, TRANSFERS.propagate = TRANSFERS.propagate, False
    TRANSFERS.addHandler(kept)
    try:
        yield kept.errors
    finally:
        TRANSFERS.removeHandler(kept)
        TRANSFERS.propagate = propagates


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error that a line is about."""
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])
