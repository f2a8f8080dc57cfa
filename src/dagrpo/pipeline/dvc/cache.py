"""Storage of outputs in DVC's cache, checked afterwards.

If a file cannot be stored, mostly for lack of space, DVC logs it and continues as if it had been: dvc.lock then names content
that no cache has. recording.py decides which stages are recorded, and when.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.full_disk import about_room, no_room

TRANSFERS = logging.getLogger("dvc_data.hashfile.transfer")


def store(stage: Any) -> None:
    """Put the outputs of DVC's stage into its cache. Raises UserError if the cache lacks any of them afterwards."""
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
    """Store outputs; return False and add to `failures` what ended it, such as a full disk, or a cache that is not a folder."""
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
    except OSError:  # the cache is unreadable
        return True


@contextmanager
def _failures() -> Iterator[list[BaseException]]:
    """Collect the errors that DVC would log, a line or more for each file."""
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
        """Store the error of a log line."""
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])
