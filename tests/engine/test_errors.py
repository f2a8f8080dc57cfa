from pathlib import Path

import pytest

from dagrpo.engine.errors import OF_SIGBUS, cause_of_death, last_line_of, reason_in

DEATH = """\
[2026-11-21 09:00:00] Load weight begin. avail mem=21.52 GB
[2026-11-21 09:00:01] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 6297, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args)
ValueError: Model architectures ['Nonsense'] are not supported for now.

[2026-11-21 09:00:02] Received sigquit from a child process. It usually means the child failed.
"""


def test_the_reason_is_the_exception_though_more_was_logged_after_it_and_none_from_before_the_server_was_ready(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    log.write_text(DEATH)
    assert reason_in(log) == "ValueError: Model architectures ['Nonsense'] are not supported for now."
    assert last_line_of(log) == "Received sigquit from a child process. It usually means the child failed."
    assert reason_in(log, start=len(DEATH)) is None


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31000): address already in use",
        "AssertionError",
    ],
)
def test_these_lines_name_a_reason(tmp_path: Path, line: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"before\n{line}\nafter\n")
    assert reason_in(log) == line


LINE = "RuntimeError: Rank 0 scheduler died during initialization (exit code: {}). If exit code is -9, a common cause is the OOM killer."


def test_a_server_that_sigbus_ended_had_no_room_whatever_its_own_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"
    for line in (
        LINE.format(-7),
        "Subprocess scheduler_0 (pid=9) crashed with exit code -7. Triggering SIGQUIT for cleanup...",
    ):
        log.write_text(line)
        assert cause_of_death(log, 0, [tmp_path]) == OF_SIGBUS
    log.write_text(LINE.format(-9))
    assert cause_of_death(log, 0, [tmp_path]) == LINE.format(-9)
    monkeypatch.setattr("dagrpo.engine.errors.free_on", lambda disk: 0)
    assert "no room is left on" in str(cause_of_death(log, 0, [tmp_path]))
