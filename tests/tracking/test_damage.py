"""Whatever is wrong with a journal, a database or a server: the others are delivered, and no run fails."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.conftest import parent_runs, stage_record, stage_runs

import dagrpo.tracking.recorder  # noqa: F401  MLflow, whose import is no part of what is waited for
from dagrpo.tracking import delivery
from dagrpo.tracking.delivery import LOG, TROUBLE_FILE, follow, last_trouble, seconds_waiting, settle, start_following
from dagrpo.tracking.environment import Process
from dagrpo.tracking.journal import (
    DAMAGED,
    EVENTS,
    FOLDER,
    PROGRESS,
    Journal,
    journals,
    progress_of,
    read_events,
    set_aside_damaged,
)
from dagrpo.tracking.runs import stage_run
from dagrpo.tracking.store import CREDENTIALS
from dagrpo.workflow.finish import settle_tracking

START = {"record": stage_record(), "uri": "sqlite:///mlflow.db", "artifacts": None, "tags": {}}
LONG = 1 << 25  # bytes
WHOLE = json.dumps({"event": "start", "time": 1, "process": asdict(Process.current()), **START}).encode()
END = b'{"event":"end","time":2,"status":"FINISHED"}'


def without(start: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """A start event that lacks one field."""
    name, *inner = path
    return {key: without(value, *inner) if key == name else value for key, value in start.items() if [key] != [*path]}


def with_start(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(events: Path) -> None:
        start, *rest = events.read_text().splitlines()
        events.write_text("\n".join([json.dumps(change(json.loads(start))), *rest]) + "\n")

    return damage


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(events: Path) -> None:
        events.unlink()
        make(events)

    return damage


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda events: events.write_text(""),
    "truncated": lambda events: os.truncate(events, 100),
    "binary": lambda events: events.write_bytes(bytes(range(256)) * 100),
    "deep": lambda events: events.write_text("[" * 100_000 + "\n"),
    "long": lambda events: events.write_bytes(b'{"event":"' + b"x" * LONG + b'"}\n'),
    "folder": replaced_by(Path.mkdir),
    "pipe": replaced_by(os.mkfifo),
    "device": replaced_by(lambda events: events.symlink_to("/dev/zero")),
    "list": with_start(lambda start: [start]),
    "no record": with_start(lambda start: without(start, "record")),
    "no stage": with_start(lambda start: without(start, "record", "stage")),
    "no outputs": with_start(lambda start: without(start, "record", "outputs")),
    "process of words": with_start(lambda start: start | {"process": "me"}),
    "process beyond numbers": with_start(lambda start: start | {"process": start["process"] | {"pid": 10**30}}),
    "time of words": with_start(lambda start: start | {"time": "now"}),
    "half a surrogate": with_start(lambda start: start | {"variation": "\ud800"}),
    "begins with its end": with_start(lambda start: {"event": "end", "time": 1, "status": "FINISHED"}),
}
BROKEN_LINES = (
    b"\n",
    b"\xff\xfe\n",
    b"3\n",
    b'{"event":["metrics"],"time":1}\n',
    b'{"event":"metrics","time":1,"step":1,"values":[1]}\n',
    b'{"event":"metrics","time":1,"step":99999999999999999999,"values":{"a":1}}\n',
    b'{"event":"metrics","time":1,"step":1,"values":{"a":NaN}}\n',
    b'{"event":"table","time":1,"file":"files/none.parquet","name":"t"}\n',
    b'{"event":"table","time":1,"file":"files/damaged","name":"t"}\n',
    b'{"event":"traces","time":1,"file":"files/traces.json"}\n',
    b'{"event":"artifact","time":1,"file":"../../../../secret.txt","folder":""}\n',
    b'{"event":"artifact","time":1,"file":"files/damaged","folder":"../.."}\n',
    b'{"event":"outputs","time":1,"digests":["x"]}\n',
    b'{"event":"nobody knows","time":1}\n',
)


def record(stage: str, seed: int = 0) -> Path:
    """The journal of a stage that has ended."""
    before = journals(Path.cwd())
    with stage_run(stage_record(stage, seed)) as run:
        run.log_metrics({"loss": 0.5}, step=1)
    (folder,) = set(journals(Path.cwd())) - set(before)
    return folder


def test_unreadable_journals_are_set_aside_by_name_and_the_others_are_delivered(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [record("train", seed=1)]
    damaged = [record("train", seed=2 + number) for number in range(len(UNREADABLE))]
    good.append(record("score"))
    for folder, damage in zip(damaged, UNREADABLE.values(), strict=True):
        damage(folder / EVENTS)
    assert settle(project), last_trouble(project)
    assert last_trouble(project) == ""
    assert {run.data.tags["execution"] for run in stage_runs(project)} == {folder.name for folder in good}
    for folder, kind in zip(damaged, UNREADABLE, strict=True):
        assert os.path.lexists(folder / DAMAGED), kind
        assert f"{folder / EVENTS} cannot be read (" in caplog.text, kind
    caplog.clear()
    assert settle(project)
    assert caplog.text == "", "it is said once"


def test_what_is_damaged_in_a_journal_is_left_out_and_the_rest_of_it_is_delivered(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "secret.txt").write_text("of another program")
    with stage_run(stage_record()) as run:
        run.log_metrics({"loss": 0.5}, step=1)
        (folder,) = journals(project)
        (folder / "files").mkdir()
        (folder / "files/damaged").write_bytes(b"PAR1 and no more")
        (folder / "files/traces.json").write_text('{"traces": [{"name": 3}]}')
        with (folder / EVENTS).open("ab") as events:
            events.write(b"".join(BROKEN_LINES))
        run.log_table("completions", pa.table({"text": ["a"]}))
    assert settle(project), last_trouble(project)
    (kept,) = stage_runs(project)
    assert kept.info.status == "FINISHED"
    assert parent_runs(project)["0"].data.metrics == {"loss": 0.5}
    files = [path.name for path in (project / "mlartifacts").rglob("*") if path.is_file()]
    assert files == ["completions.json"]
    assert caplog.text.count("is left out of the record") == len(BROKEN_LINES)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"offset": -1, "run_id": "x"}', b'{"offset": 1e999}', b"\xff"]
)
def test_a_damaged_note_of_progress_is_none(tmp_path: Path, content: bytes) -> None:
    journal = Journal.begin(tmp_path, "train", START)
    (journal.folder / PROGRESS).write_bytes(content)
    assert progress_of(journal.folder) == (0, "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["event", "time", "process", "record", "uri", "artifacts", "tags", "step", "values", "status"])
OF_ANOTHER_SHAPE = st.builds(
    lambda changes: json.dumps(START | {"event": "start", "time": 1} | changes).encode(),
    st.dictionaries(FIELDS, JSON, min_size=1, max_size=3),
)
LINES = st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()) | OF_ANOTHER_SHAPE


@given(before=st.lists(LINES, max_size=2), after=st.lists(LINES, max_size=3))
def test_no_journal_stops_those_who_read_all_of_them(before: list[bytes], after: list[bytes]) -> None:
    with TemporaryDirectory() as folder_name:
        root = Path(folder_name)
        for name, lines in (("1", (*before, WHOLE, END)), ("2", (WHOLE, *after, END))):
            (root / FOLDER / name).mkdir(parents=True)
            (root / FOLDER / name / EVENTS).write_bytes(b"".join(line + b"\n" for line in lines))
        seconds_waiting(root)
        set_aside_damaged(root)
        for folder in journals(root):
            kinds = [event["event"] for event in read_events(folder)[0]]
            assert (kinds[0], kinds[-1]) == ("start", "end")


def test_following_ends_when_a_journal_is_damaged_meanwhile(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "train", START)
    (journal.folder / EVENTS).unlink()
    (journal.folder / EVENTS).mkdir()
    follow(journal.folder, pause_s=0.0)


def test_a_record_that_nothing_can_be_done_with_fails_no_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record("train")
    (project / FOLDER / delivery.LOCK).mkdir()
    (project / FOLDER / delivery.TROUBLE_FILE).mkdir()
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    settle_tracking()
    assert "MLflow does not hold everything yet: " in capsys.readouterr().err


def test_a_database_that_another_program_holds_is_named_and_what_waits_is_delivered_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    with closing(sqlite3.connect(project / "mlflow.db")) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("dagrpo.tracking.store.ANSWER_SECONDS", 0.1)
        record("train")
        assert not settle(project)
        told = f"{project.resolve()}/mlflow.db cannot record runs (database is locked): end the program that holds it"
        assert last_trouble(project).startswith(told)
    assert settle(project), last_trouble(project)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """The address of a server that answers everything in one way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Silence."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Silence: nobody waits for this answer any more."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def with_body(body: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", handler.path)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(20)


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (with_body(b"<html>hello</html>"), "does not answer as MLflow does ("),
        (with_body(b"[1, 2]"), "does not answer as MLflow does ("),
        (with_body(b'{"experiments": 3}'), "does not answer as MLflow does ("),
        (with_body(b"<html>", 500), "does not answer (too many 500 error responses): start it, or correct"),
        (with_body(b"", 302), "does not answer (Exceeded 30 redirects.): start it, or correct"),
        (hang, "does not answer ("),
        (drip, ""),
    ],
    ids=["html", "list", "shape", "500", "redirect", "hang", "drip"],
)
def test_a_server_that_answers_anything_costs_no_result_and_is_told_in_a_sentence(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[BaseHTTPRequestHandler], None], told: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(delivery, "GRACE_SECONDS", 3.0)
    with answering(answer) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        record("train")
        started = time.monotonic()
        assert not settle(fresh, timeout_s=1.0)
        assert time.monotonic() - started < 15
    trouble = last_trouble(fresh)
    assert trouble.startswith(f"the server at http://{address} {told}" if told else "what was asked of MLflow has not")
    assert len(trouble) < 500
    assert "s3cret" not in "".join(path.read_text() for path in (fresh / FOLDER).rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["pipe", "device", "zeros"])
def test_the_reason_why_nothing_was_delivered_is_read_at_once_or_not_at_all(kind: str, tmp_path: Path) -> None:
    path = tmp_path / FOLDER / TROUBLE_FILE
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 30)
    assert "cannot be read" in last_trouble(tmp_path)


def test_a_log_that_is_no_file_of_ours_is_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    journal = tmp_path / FOLDER / "1-train-x"
    journal.mkdir(parents=True)
    log, theirs = journal.parent / LOG, tmp_path / "theirs"
    os.mkfifo(log)
    delivery._log(journal, "a traceback")
    with pytest.raises(OSError, match=LOG):
        start_following(journal)
    log.unlink()
    theirs.write_text("precious")
    log.symlink_to(theirs)
    delivery._log(journal, "a traceback")
    with pytest.raises(OSError, match=LOG):
        start_following(journal)
    assert theirs.read_text() == "precious"


def test_what_was_recorded_for_another_server_waits_for_it_and_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://alice:s3cret@127.0.0.1:9")  # where nobody answers
    record("train")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:0ther@mlflow.lab")
    assert not settle(fresh)
    told = last_trouble(fresh)
    assert told.startswith("the server at http://127.0.0.1:9 does not answer (")
    assert ": set MLFLOW_TRACKING_URI to it again once it answers, for what was recorded for it is delivered" in told
    assert "correct MLFLOW_TRACKING_URI" not in told
    assert not any(secret in told for secret in ("s3cret", "0ther"))
    assert len(journals(fresh)) == 1


@pytest.mark.parametrize("name", CREDENTIALS)
def test_another_server_is_not_shown_the_credentials_of_todays(
    name: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    with answering(lambda handler: shown.append(str(handler.headers))) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        record("train")
        asked = len(shown)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.lab")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
        monkeypatch.setenv(name, "0f-mlflow.lab")
        assert not settle(fresh)
    assert shown[asked:] == []
    told = last_trouble(fresh)
    assert told.startswith(
        f"the server at http://{address} is not asked with {name}, which is for another: set MLFLOW_"
    )
    assert "0f-mlflow.lab" not in told
    assert len(journals(fresh)) == 1
