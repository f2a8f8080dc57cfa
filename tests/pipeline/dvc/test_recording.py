"""Only what the parameters and the code of today would make again may be recorded in DVC."""

from pathlib import Path

import pytest

from dagrpo.config.schema import Params, parse
from dagrpo.pipeline.dvc.recording import still_current
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import code_files, own_params
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.files import sha256_of, write_json

SCORE = all_stages()["score"]


def _code() -> str:
    return code_digest(code_files(Params(), SCORE))


def _ran(folder: Path, params: Params, code: str) -> Path:
    provenance, given = folder / "scores.provenance.json", folder / "completions.parquet"
    given.write_text("completions")
    record = {
        "stage": "score",
        "key": "k",
        "code": code,
        "params": own_params(params, SCORE),
        "inputs": {str(given): sha256_of(given)},
    }
    write_json(provenance, record)
    entry = folder / "entry.json"
    write_json(entry, {"outputs": ["scores.json"], "provenance": str(provenance), "key": "k"})
    return entry


FASTER = parse({"runtime": {"training": {"micro_batch_size": 1}, "engine": {"request_timeout": 9}}})
FLEXIBLE = parse({"evaluation": {"scoring": {"extractor": "flexible"}}})


@pytest.mark.parametrize(
    ("ran", "today", "code", "is_recorded"),
    [
        (Params(), Params(), None, True),
        (Params(), FASTER, None, True),
        (FLEXIBLE, Params(), None, False),
        (Params(), Params(), "older", False),
    ],
    ids=["the same", "another runtime", "an override run", "other code"],
)
def test_only_what_ran_with_the_parameters_and_the_code_of_today_is_recorded(
    ran: Params, today: Params, code: str | None, is_recorded: bool, tmp_path: Path
) -> None:
    assert still_current(_ran(tmp_path, ran, code or _code()), today) == ["scores.json"] * is_recorded


@pytest.mark.parametrize("content", [None, {"stage": "score", "key": "another"}])
def test_what_was_replaced_or_removed_since_is_not_recorded(tmp_path: Path, content: dict[str, str] | None) -> None:
    entry = _ran(tmp_path, Params(), _code())
    provenance = tmp_path / "scores.provenance.json"
    provenance.unlink()
    if content is not None:
        write_json(provenance, content)
    assert still_current(entry, Params()) == []
    entry = _ran(tmp_path, Params(), _code())
    assert still_current(entry, Params()) == ["scores.json"]
    (tmp_path / "completions.parquet").write_text("others")
    assert still_current(entry, Params()) == []
