"""The private parts of Snakemake are as snakemake_private.py takes them to be. A failure here: read its new version."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.cli import get_argument_parser
from snakemake.io import IOFile
from snakemake.persistence import RECORD_FORMAT_VERSION
from snakemake.persistence.file import FilePersistence

from dagrpo.pipeline import snakemake_private as private

LONG = Path("results", *(f"folder_{number}" for number in range(40)), "provenance.json")


@pytest.fixture
def snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilePersistence:
    monkeypatch.chdir(tmp_path)
    return FilePersistence()


def _made(path: Path) -> Any:
    path.parent.mkdir(parents=True)
    path.touch()
    return IOFile(str(path))


@pytest.mark.parametrize("path", [Path("data/e/gsm8k/card.json"), LONG], ids=["short", "long"])
def test_snakemake_reads_a_record_and_takes_its_job_for_finished(snakemake: FilePersistence, path: Path) -> None:
    output = _made(path)
    job = SimpleNamespace(output=[output])
    private.record_unfinished(path)
    assert snakemake._filter_incomplete_keys([output]) == {output}
    assert private.is_unfinished(path)
    private.record_finished(path, "prepare", ".state/jobs/prepare-1.json", {"raw": "0" * 64})
    snakemake.deactivate_cache()
    assert snakemake._filter_incomplete_keys([output]) == set()
    assert snakemake.has_metadata(job)
    assert not snakemake.has_outdated_metadata(job)
    assert snakemake.params(output) == ["'.state/jobs/prepare-1.json'"]
    assert snakemake.input_checksums(job, "raw") == {f"sha256:{'0' * 64}"}
    assert private.FORMAT == RECORD_FORMAT_VERSION


def test_a_record_of_snakemakes_is_read(snakemake: FilePersistence) -> None:
    path = Path("data/e/gsm8k/card.json")
    output = _made(path)
    snakemake.started(SimpleNamespace(output=[output]))
    assert list(private.unfinished_outputs()) == [str(path)]
    private.record_finished(path, "prepare", ".state/jobs/prepare-1.json", {"raw": "0" * 64})
    snakemake.deactivate_cache()
    snakemake._write_record(str(path), snakemake.metadata(output))
    assert private.recorded_job(path) == "prepare-1"
    assert private.recorded_digests(path) == {"raw": "0" * 64}


def test_snakemakes_locks_are_found_by_the_experiment_that_they_name(snakemake: FilePersistence) -> None:
    snakemake._write_locks("output", ["data/e/gsm8k/card.json"])
    assert [lock.parent for lock in private.locks_of("e")] == [private.LOCKS]
    assert private.locks_of("other") == []


def test_every_option_without_jobs_is_one_of_snakemakes() -> None:
    known = vars(get_argument_parser().parse_args([]))
    assert set(private.WITHOUT_JOBS) <= set(known)
