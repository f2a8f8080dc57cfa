"""The sentence about a stage that was told to stop, and what is known for it."""

from pathlib import Path
from typing import NoReturn

import pytest

from dagrpo.pipeline import supervisor
from dagrpo.pipeline.declaration import Stage
from dagrpo.pipeline.failure_report import FailureReport, Kind, stop_sentence
from dagrpo.utils.console import progress


@pytest.mark.parametrize(
    ("finished", "saved", "sentence"),
    [
        (None, 0, "stopped; the same command starts it again."),
        (3, 0, "stopped at step 3; the same command starts it again."),
        (43, 43, "stopped at step 43; the same command goes on from there."),
        (None, 40, "stopped at step 40; the same command goes on from there."),
        (43, 40, "stopped at step 43; the same command goes on from step 40, the last that was saved."),
    ],
)
def test_who_stops_is_told_where_it_goes_on(finished: int | None, saved: int, sentence: str) -> None:
    assert stop_sentence(finished, saved) == sentence


def _ending(name: str, attempt: int = 1, rank: int = 0) -> FailureReport:
    stage = Stage(name=name, work=lambda job: None, reads=(), extends=("training.steps",))
    return FailureReport(stage, 3, Path("logs/x.log"), attempt, rank)


def test_the_cause_of_an_end_is_told_and_a_stop_only_where_nothing_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _ending("train", rank=1).record_stop()
    assert _ending("train").earlier() is None, "rank 0 tells of a stop"
    _ending("train").record_stop()
    assert _ending("train").record_crash("it ended with exit code 1.").kind == "crash", "which had the others stopped"
    with progress("train", 9) as bar:
        bar.advance(2)
    _ending("train", attempt=2).record_stop()
    earlier = _ending("train").earlier()
    assert earlier is not None
    assert (earlier.kind, earlier.step, earlier.what) == ("stopped", 2, "train, seed 3")
    _ending("train", attempt=3, rank=1).record(Kind.MISTAKE, "memory is full.")
    _ending("train", attempt=3).record_stop()
    earlier = _ending("train").earlier()
    assert earlier is not None
    assert (earlier.kind, earlier.sentence, earlier.log) == ("mistake", "memory is full.", "logs/x.rank_1.log")


def test_a_stop_of_a_later_attempt_before_its_work_is_the_stop_of_that_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: Path) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "declared", interrupted)
    _ending("train").record_crash("it ended with signal 9.")
    words = "--job train-1.json --experiment e --seed 3 --runtime r.json --log logs/x.log --attempt 2"
    with pytest.raises(SystemExit):
        supervisor.main(words.split())
    earlier = _ending("train").earlier()
    assert earlier is not None
    assert (earlier.kind, earlier.attempt) == ("stopped", 2)
