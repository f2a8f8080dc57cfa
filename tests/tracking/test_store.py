"""Where runs are recorded, and what is refused before any work."""

import socket
import sqlite3
from pathlib import Path

import pytest
from tests.tracking.conftest import execution, stage_record, stage_runs, write

from dagrpo.core.errors import UserError
from dagrpo.tracking.contents import Artifact, Contents
from dagrpo.tracking.store import (
    is_initialised,
    open_client,
    remedy_for,
    require_answer,
    require_recording,
    require_usable,
)
from dagrpo.tracking.store_address import artifact_location, hide_password, tracking_uri, without_password


def test_the_default_is_a_database_in_the_project_with_artifacts_beside_it(fresh: Path) -> None:
    uri = tracking_uri(fresh)
    assert uri == f"sqlite:///{fresh.resolve()}/mlflow.db"
    assert artifact_location(uri, fresh) == f"{fresh.resolve()}/mlartifacts"
    assert not is_initialised(uri)
    require_usable(uri)


def test_a_relative_database_is_one_in_the_project(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs/all.db")
    assert tracking_uri(fresh) == f"sqlite:///{fresh.resolve()}/runs/all.db"
    assert artifact_location(tracking_uri(fresh), fresh) == f"{fresh.resolve()}/runs/mlartifacts"


def test_a_server_decides_where_artifacts_go(fresh: Path) -> None:
    assert artifact_location("http://127.0.0.1:5000", fresh) is None


def test_the_embedded_database_keeps_a_write_ahead_log(empty_database: Path) -> None:
    connection = sqlite3.connect(empty_database)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_server_that_does_not_answer_is_refused_in_a_sentence(fresh: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: a connection is refused
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=r"does not answer .*: start it, or correct MLFLOW_TRACKING_URI"):
            require_answer(uri)
        require_usable(uri)  # what is meant for it waits


def test_a_folder_is_refused_in_a_sentence(fresh: Path) -> None:
    with pytest.raises(ValueError, match=r"MLFLOW_TRACKING_URI=\./mlruns names a folder.*sqlite:///<file>"):
        require_usable("./mlruns")


def test_a_damaged_database_is_refused_in_a_sentence(fresh: Path) -> None:
    (fresh / "mlflow.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(ValueError, match=r"mlflow\.db cannot record runs \(file is not a database\): move it away"):
        require_usable(tracking_uri(fresh))


def test_a_database_in_place_of_a_folder_is_refused_in_a_sentence(fresh: Path) -> None:
    (fresh / "file").write_text("")
    with pytest.raises(ValueError, match=r"file is not a folder to write all\.db in"):
        require_usable(f"sqlite:///{fresh}/file/all.db")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://alice:s3cret@lab:5000/x", "http://alice@lab:5000/x"),
        ("https://s3cret@lab", "https://lab"),
        ("postgresql://alice:s3cret@lab/runs", "postgresql://alice@lab/runs"),
        ("postgresql://alice@lab/runs", "postgresql://alice@lab/runs"),
        (
            "postgresql://lab/runs?user=alice&password=s3cret&sslmode=on",
            "postgresql://lab/runs?user=alice&password=***&sslmode=on",
        ),
        ("http://lab?access_token=s3cret", "http://lab?access_token=***"),
        ("http://lab?token=s3cret'and%20more", "http://lab?token=***"),
        ("http://lab?x=1&token?=s3cret#end", "http://lab?x=1&token?=***#end"),
        ("sqlite:////runs/all.db", "sqlite:////runs/all.db"),
    ],
)
def test_an_address_is_written_down_without_what_opens_it(uri: str, shown: str) -> None:
    assert without_password(uri) == shown


def test_what_libraries_quote_is_hidden_in_every_form(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://alice:s3cr%40t@lab/runs?sslpassword=0ther")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "th1rd")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "f0urth")
    quoted = "s3cr%40t s3cr@t 0ther th1rd f0urth postgresql://alice:s3cr%40t@lab/runs"
    assert hide_password(quoted, tracking_uri(fresh)) == "*** *** *** *** *** postgresql://alice:***@lab/runs"


def test_a_refused_address_is_named_without_its_password() -> None:
    with pytest.raises(ValueError, match=r"MLFLOW_TRACKING_URI=file://alice@lab/x names a folder"):
        require_recording("file://alice:s3cret@lab/x")


@pytest.mark.parametrize(
    "uri",
    [
        "http://[s3cret",
        "http://alice:s3cret@lab:65536",
        "http://alice:s3cret@lab:port",
        "http://alice:s3cret/x@lab",
        "postgresql://alice:12/s3cret@lab/runs",
        "postgresql://alice:12#s3cret@lab/runs",
        "http://s3cret:99999",
        "http:///x",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_unquoted(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for refuse in (require_recording, require_usable):
        with pytest.raises(UserError, match="MLFLOW_TRACKING_URI is not an address") as caught:
            refuse(tracking_uri(fresh))
        assert "s3cret" not in str(caught.value)
        assert len(str(caught.value)) < 500
    assert "s3cret" not in hide_password(f"no answer from {uri}", uri)
    assert "s3cret" not in without_password(uri)


@pytest.mark.parametrize("words", ["database or disk is full", "disk I/O error", "unable to open database file"])
def test_a_database_on_a_full_disk_is_told_with_its_disk_and_room(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagrpo.tracking.store.free_on", lambda disk: 4096)
    remedy = remedy_for(tmp_path / "mlflow.db", words)
    assert remedy.startswith("make room on /")
    assert remedy.endswith(", where 4,096 bytes are free")


def test_a_damaged_database_with_room_beside_it_is_moved_away(tmp_path: Path) -> None:
    assert remedy_for(tmp_path / "mlflow.db", "file is not a database") == "move it away"


def test_a_moved_project_finds_its_artifacts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, execution(stage_record()), Contents(artifacts=[Artifact(name="note.txt", content=b"still here")]))
    moved = project.with_name(f"{project.name}-moved")
    project.rename(moved)
    monkeypatch.chdir(moved)
    (found,) = stage_runs(moved)
    client = open_client(tracking_uri(moved))
    assert found.info.artifact_uri.startswith(str(moved / "mlartifacts"))
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["note.txt"]
