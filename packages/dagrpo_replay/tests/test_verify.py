"""`dagrpo verify RUN`: what is missing, changed or unknown, from the raw data to the report."""

import hashlib
import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.pictures import picture
from tests.pipeline.changes.made_up import Project
from typer.testing import CliRunner, Result

from dagrpo.cli.application import app
from dagrpo.core.errors import UserError
from dagrpo.data.reading import picture_digest
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo_replay.verify import State, verify_files


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


def faults(project: Project) -> list[tuple[str, State]]:
    return [(each.path, each.state) for each in verify_files(project.name) if each.state != State.WHOLE]


def with_raw(project: Project, raw: dict[str, str], mirror: Path | None, revision: str | None = None) -> list[State]:
    """The prepared data says that it was made from this in a mirror, or at the hub; what is found of each."""
    origin = "mirror" if mirror else "hub"
    provenance = project.provenance("prepare")
    card = provenance.parent / "card.json"
    write_json(card, {"raw": raw, "source": "lab/words", "origin": origin, "revision": revision})
    record = read_json(provenance)
    record["params"]["data"]["mirror"] = None if mirror is None else str(mirror)
    write_json(provenance, record | {"outputs": record["outputs"] | {str(card): sha256_of(card)}})
    return [verified.state for verified in verify_files(project.name)[: len(raw)]]


def test_an_experiment_that_nobody_touched_is_whole(made_up: Project) -> None:
    assert faults(made_up) == []
    done = run(made_up.name)
    assert done.exit_code == 0
    assert "0 missing, 0 changed, 0 unknown" in done.stdout
    told = json.loads(run(made_up.name, "--json").stdout)
    assert {each["state"] for each in told} == {"whole"}
    assert len(told) > len(made_up.provenances)
    Path("results/other").mkdir()
    with pytest.raises(
        UserError, match="There is no record of an experiment `other` in data, models, results: there is only"
    ):
        verify_files("other")


def test_a_byte_a_missing_file_and_a_stranger_are_told_apart(made_up: Project) -> None:
    content = made_up.provenance("sft").parent / "content"
    content.write_text(content.read_text()[::-1])
    scores = made_up.provenance("score").parent / "scores.json"
    scores.unlink()
    stranger = Path("results", made_up.name, "notes.txt")
    stranger.write_text("mine")
    assert set(faults(made_up)) == {
        (str(content), State.CHANGED),
        (str(scores), State.MISSING),
        (str(stranger), State.UNKNOWN),
    }
    done = run(f"results/{made_up.name}")
    assert done.exit_code == 1
    assert f"changed  {content} (in a folder of sft, seed 0)" in done.stdout
    assert "`dvc checkout --force` restores" in done.stdout


def test_an_input_that_was_made_again_since_breaks_the_chain(made_up: Project) -> None:
    provenance = made_up.provenance("sample")
    completions = provenance.parent / "completions.parquet"
    completions.write_text("made again")
    record = read_json(provenance)
    write_json(provenance, record | {"outputs": {str(completions): sha256_of(completions)}})
    (found,) = [each for each in verify_files(made_up.name) if each.state != State.WHOLE]
    assert (
        found.description
        == "made again by sample, seed 0, arithmetic, base after score, seed 0, arithmetic, base has read it"
    )


def test_a_picture_that_was_replaced_beside_its_rows_is_a_change(made_up: Project, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture(colour="red"))
    (tmp_path / "train.jsonl").write_text('{"images": ["1.png"]}')
    name = "train.jsonl#images"
    digests = {
        "train.jsonl": sha256_of(tmp_path / "train.jsonl"),
        name: picture_digest(tmp_path / "train.jsonl", "images").sha256,
    }
    assert with_raw(made_up, digests, tmp_path) == [State.WHOLE, State.WHOLE]
    (tmp_path / "1.png").write_bytes(picture(colour="blue"))
    assert with_raw(made_up, digests, tmp_path) == [State.WHOLE, State.CHANGED]
    changed = verify_files(made_up.name)[1]
    assert (changed.path, changed.description) == (f"{tmp_path}/{name}", f"pictures of raw data, lab/words: {name}")
    assert changed.bytes == len(picture(colour="blue"))
    (tmp_path / "1.png").unlink()
    assert with_raw(made_up, digests, tmp_path) == [State.WHOLE, State.CHANGED]
    (tmp_path / "train.jsonl").write_text("no rows")
    assert with_raw(made_up, digests, tmp_path) == [State.CHANGED, State.CHANGED]
    (tmp_path / "train.jsonl").unlink()
    assert with_raw(made_up, digests, tmp_path) == [State.UNKNOWN, State.UNKNOWN]


def test_raw_data_in_the_hubs_cache_is_read(made_up: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision, raw = "a" * 40, {"train.jsonl": hashlib.sha256(b"raw").hexdigest()}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    cached = tmp_path / "cache/datasets--lab--words/snapshots" / revision / "train.jsonl"
    assert with_raw(made_up, raw, None, revision) == [State.UNKNOWN]
    cached.parent.mkdir(parents=True)
    for text, state in (("raw", State.WHOLE), ("other", State.CHANGED)):
        cached.write_text(text)
        assert with_raw(made_up, raw, None, revision) == [state]
