"""Where runs are recorded, and what is refused before any work."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo_mlflow.store import (
    artifact_location,
    hide_password,
    is_initialised,
    require_recording,
    tracking_uri,
    trouble_of_store,
    without_user,
)


@pytest.mark.parametrize(
    ("address", "database", "artifacts"),
    [
        ("", "sqlite:///{root}/mlflow.db", "{root}/mlartifacts"),
        ("sqlite:///runs/all.db", "sqlite:///{root}/runs/all.db", "{root}/runs/mlartifacts"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000", None),  # a server decides where they go
    ],
)
def test_runs_are_recorded_in_a_database_with_artifacts_beside_it_or_on_a_server(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, address: str, database: str, artifacts: str | None
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    uri, root = tracking_uri(fresh), fresh.resolve()
    assert uri == database.format(root=root)
    assert artifact_location(uri, fresh) == (artifacts and artifacts.format(root=root))
    require_recording(uri)
    assert is_initialised(uri) is (artifacts is None), "and no question leaves a file behind"
    assert list(fresh.iterdir()) == []


def test_the_embedded_database_keeps_a_write_ahead_log(empty_database: Path) -> None:
    with closing(sqlite3.connect(empty_database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(("uri", "shown"), [("./mlruns", "./mlruns"), ("file://alice:s3cret@lab/x", "file://lab/x")])
def test_a_folder_is_refused_in_a_sentence(uri: str, shown: str) -> None:
    with pytest.raises(UserError, match=f"MLFLOW_TRACKING_URI={shown} names a folder.*sqlite:///<file>"):
        require_recording(uri)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://alice:s3cret@lab:5000/x", "http://lab:5000/x"),
        ("https://s3cret@lab", "https://lab"),
        ("postgresql://alice:s3cret@lab/runs", "postgresql://lab/runs"),
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
    assert without_user(uri) == shown


def test_what_libraries_quote_is_hidden_in_every_form(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://alice:s3cr%40t@lab/runs?sslpassword=0ther")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "th1rd")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "f0urth")
    quoted = "s3cr%40t s3cr@t 0ther th1rd f0urth postgresql://alice:s3cr%40t@lab/runs"
    assert hide_password(quoted, tracking_uri(fresh)) == "*** *** *** *** *** postgresql://alice:***@lab/runs"


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
def test_an_address_that_cannot_be_read_is_refused_unquoted(uri: str) -> None:
    with pytest.raises(UserError) as caught:
        require_recording(uri)
    for text in (str(caught.value), hide_password(f"no answer from {uri}", uri), without_user(uri)):
        assert "s3cret" not in text


@pytest.mark.parametrize(
    ("free", "words", "remedy"),
    [
        (4096, "disk I/O error", "make room on "),
        (1 << 40, "database or disk is full", "make room on "),
        (1 << 40, "file is not a database", "correct its permissions, or move it away"),
    ],
)
def test_a_database_that_takes_nothing_is_named_with_a_remedy(
    free: int, words: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagrpo_mlflow.store.free_on", lambda disk: free)
    trouble = trouble_of_store(OSError(words), f"sqlite:///{tmp_path}/mlflow.db")
    assert trouble.startswith(f"{tmp_path}/mlflow.db cannot record runs: {words}: {remedy}")
