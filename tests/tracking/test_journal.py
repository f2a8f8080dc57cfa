"""What a stage writes down while it works."""

from pathlib import Path
from typing import Any

import pytest
from tests.tracking.conftest import stage_record

from dagrpo.tracking.environment import Process
from dagrpo.tracking.journal import (
    DAMAGED,
    EVENTS,
    Journal,
    discard,
    has_end,
    identity,
    journals,
    read_events,
    set_aside_damaged,
    start_of,
)

START = {"record": stage_record(), "uri": "sqlite:///mlflow.db", "artifacts": None, "tags": {}}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.begin(tmp_path, "train", START)


def test_a_journal_starts_with_the_record_and_its_process(tmp_path: Path, journal: Journal) -> None:
    assert journals(tmp_path) == [journal.folder]
    start = start_of(journal.folder)
    assert start["event"] == "start"
    assert start["record"]["stage"] == "train"
    assert Process(**start["process"]) == Process.current()


@pytest.mark.parametrize("beginning", ["", "{}\n", '{"event": "sta'])
def test_a_journal_whose_beginning_is_damaged_is_set_aside_with_a_warning_that_names_it(
    tmp_path: Path, journal: Journal, beginning: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = Journal.begin(tmp_path, "score", START)
    (damaged.folder / EVENTS).write_text(beginning)
    assert journals(tmp_path) == [journal.folder]
    set_aside_damaged(tmp_path)
    assert (damaged.folder / DAMAGED).read_text() == beginning
    assert str(damaged.folder / EVENTS) in caplog.text


def test_reading_goes_on_where_it_stopped(journal: Journal) -> None:
    _, offset = read_events(journal.folder)
    journal.write("metrics", step=1, values={"loss": 0.5})
    events, end = read_events(journal.folder, offset)
    assert [event["step"] for event in events] == [1]
    assert read_events(journal.folder, end) == ([], end)


def test_half_a_line_is_left_for_later(journal: Journal) -> None:
    _, offset = read_events(journal.folder)
    with (journal.folder / EVENTS).open("ab") as file:
        file.write(b'{"event":"met')
    assert read_events(journal.folder, offset) == ([], offset)


def test_a_line_that_a_full_disk_cut_off_is_left_out(journal: Journal) -> None:
    with (journal.folder / EVENTS).open("ab") as file:
        file.write(b'{"event":"met\n')
    journal.write("end", status="FINISHED")
    assert [event["event"] for event in read_events(journal.folder)[0]] == ["start", "end"]


def test_a_journal_has_an_end_once_the_stage_said_how_it_ended(journal: Journal) -> None:
    assert not has_end(journal.folder)
    journal.write("metrics", step=1, values={f"m{i}": 0.5 for i in range(100)})
    assert not has_end(journal.folder)
    journal.write("end", status="FAILED")
    assert has_end(journal.folder)


def test_a_discarded_journal_is_gone(tmp_path: Path, journal: Journal) -> None:
    discard(journal.folder)
    assert journals(tmp_path) == []
    assert list((tmp_path / ".state/tracking").iterdir()) == []


def test_executions_with_the_same_outputs_have_one_identity() -> None:
    def of(variation: str = "", **changes: Any) -> str:
        return identity({"record": stage_record(**changes), "variation": variation})

    assert of() == of(key="f" * 64)
    assert len({of(), of(seed=1), of("try 0123abcd"), of("puffy-lamb")}) == 4
