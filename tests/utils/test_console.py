"""What a stage shows where there is no terminal: few lines, and how far it is."""

import pytest

from dagrpo.utils import console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("dagrpo.utils.console.time.monotonic", lambda: now[0])
    return now


def test_short_times_and_small_files_keep_a_digit() -> None:
    times = [console.duration(seconds) for seconds in (0.4, 2.34, 9.96, 45, 59.7, 125, 5_023)]
    assert times == ["0.4 s", "2.3 s", "10 s", "45 s", "1 min", "2 min", "1 h 24 min"]
    sizes = [console.size(count) for count in (512, 3 << 19, 1 << 30)]
    assert sizes == ["0.5 KiB", "1.5 MiB", "1.0 GiB"]


def test_what_starts_is_told_at_once_every_ten_seconds_and_when_it_is_ready(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with console.waiting("Server") as tell:
        for second in range(25):
            clock[0] = second
            tell("loading weights")
    assert capsys.readouterr().err.splitlines() == [
        "Server: starting",
        "Server: loading weights (10 s)",
        "Server: loading weights (20 s)",
        "Server: ready after 24 s",
    ]


def test_what_failed_to_start_is_not_called_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), console.waiting("Server"):
        raise KeyError
    assert capsys.readouterr().err == "Server: starting\n"


def test_brief_work_leaves_no_line_and_long_work_its_end(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(console.counted("abc", "reading")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    for _ in console.counted("abc", "reading"):
        clock[0] += 6
    assert capsys.readouterr().err.splitlines() == ["reading: 2/3  (12 s)", "reading: 3/3  (18 s)"]


def test_how_far_the_newest_bar_is_outlives_it() -> None:
    with pytest.raises(KeyboardInterrupt), console.progress("train", 9) as bar:
        bar.advance(4)
        bar.advance()
        raise KeyboardInterrupt
    assert console.finished() == 5
