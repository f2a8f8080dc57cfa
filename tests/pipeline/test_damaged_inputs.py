"""A stage whose input is damaged says so, whatever failed first, and notes what is to be made anew."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.pipeline.running import empty_project, options_of

from dagrpo.core.errors import TransientError, UserError
from dagrpo.pipeline import runner
from dagrpo.pipeline.declaration import Job, Stage
from dagrpo.pipeline.snakemake_private import is_unfinished
from dagrpo.utils.failures import MISTAKE
from dagrpo.utils.files import sha256_of, write_json
from dagrpo.utils.manifest import entry_of

FOLDER = Path("models/e/m")
__all__ = ["empty_project"]
SHARD, MANIFEST, PROVENANCE = (FOLDER / name for name in ("weights.bin", "manifest.json", "provenance.json"))


@pytest.fixture(autouse=True)
def _a_model_that_was_made(empty_project: None) -> None:
    FOLDER.mkdir(parents=True)
    SHARD.write_text("weights")
    write_json(MANIFEST, {"files": {SHARD.name: asdict(entry_of(SHARD))}})
    write_json(PROVENANCE, {"outputs": {str(MANIFEST): sha256_of(MANIFEST)}})


def _run(error: Exception | None) -> None:
    def work(job: Job) -> None:
        if error is not None:
            raise error
        job.output("result").write_text("made")

    outputs = ["result=result.txt", "provenance=provenance.json"]
    runner.run(Stage(name="probe", work=work, reads=()), options_of("probe", {}, [f"model={MANIFEST}"], outputs))


ERRORS = [UserError("cannot read it"), KeyError("tensor"), TransientError("the server died"), OSError("short read")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_the_damaged_file_is_named_whatever_failed(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagrpo.pipeline.record.LARGEST_TO_COMPARE", 3)
    SHARD.write_text("weighty")
    with pytest.raises(SystemExit) as end:
        _run(error)
    assert end.value.code == MISTAKE, "started again by itself it would fail again"
    said = capsys.readouterr().err
    assert f"{SHARD} is damaged, or was changed after it was made ({PROVENANCE} says so): started again" in said
    assert repr(error) in Path("logs/probe.log").read_text() or str(error) in Path("logs/probe.log").read_text()


@pytest.mark.parametrize("content", [None, "weighty", "weights and more", ""])
def test_its_maker_is_recorded_as_unfinished(content: str | None) -> None:
    SHARD.unlink()
    if content is not None:
        SHARD.write_text(content)
        os.utime(SHARD, (1.0, 1.0))
    with pytest.raises(SystemExit):
        _run(UserError("cannot read it"))
    assert is_unfinished(PROVENANCE)
    assert content is None or SHARD.stat().st_mtime > 1.0, "DVC takes a file of the same time and size for the same"


MANIFESTS = ["{}", "not JSON", '{"files": {"../../secret": {"sha256": "0"}}}']


@pytest.mark.parametrize(("file", "content"), [*((MANIFEST, content) for content in MANIFESTS), (SHARD, "weighty")])
def test_damage_is_found_before_the_work(file: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(content)
    with pytest.raises(SystemExit):
        _run(None)
    assert f"{file} is damaged" in capsys.readouterr().err
    assert not Path("result.txt").exists()


def test_large_files_of_a_checkpoint_are_left_to_whoever_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagrpo.pipeline.record.LARGEST_TO_COMPARE", 3)
    SHARD.write_text("weighty")
    _run(None)
