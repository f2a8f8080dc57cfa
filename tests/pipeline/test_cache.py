"""What another experiment has made of the same is taken over; whatever differs, or is damaged, is made again."""

import argparse
import errno
import fcntl
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.running import empty_project, options_of

from dagrpo.pipeline import runner
from dagrpo.pipeline.cache import cache_hit, waiting_for_equal_job
from dagrpo.pipeline.declaration import Job, Stage
from dagrpo.utils.files import FEWEST_LINKED, read_json, sha256_of, write_json, write_text
from dagrpo.utils.manifest import entry_of

made: list[str] = []
__all__ = ["empty_project"]


@pytest.fixture(autouse=True)
def _in_an_empty_project(empty_project: None) -> None:
    made.clear()


def _work(job: Job) -> None:
    """A checkpoint folder and a table, as train leaves them."""
    made.append(job.experiment)
    folder = job.output("policy").parent
    folder.mkdir(parents=True, exist_ok=True)
    content = {"config.json": "{}", "weights.bin": job.input("split").read_text()}
    for name, text in content.items():
        write_text(folder / name, text)
    write_json(folder / "manifest.json", {"files": {name: asdict(entry_of(folder / name)) for name in content}})
    job.output("metrics").write_text(f"metrics of {job.params}")  # in place


def _may_be_reused(params: Mapping[str, Any]) -> bool:
    return bool(params.get("reusable", True))


STAGE = Stage(name="sft", work=_work, reads=("sft",), reusable=_may_be_reused)


def _run(
    experiment: str,
    split: str = "data",
    *,
    seed: int = 3,
    reuse: bool = True,
    runtime: Mapping[str, Any] | None = None,
    **params: Any,
) -> dict[str, Any]:
    """Run the stage as the supervisor does; what its provenance says."""
    options = _options(experiment, split, seed, {"reuse": reuse, **(runtime or {})}, params)
    runner.run(cache_hit(STAGE, options) or STAGE, options)
    record: dict[str, Any] = read_json(options.provenance)
    return record


def _options(
    experiment: str, split: str, seed: int, runtime: Mapping[str, Any], params: Mapping[str, Any]
) -> argparse.Namespace:
    """Return the command line of a job, whose files are written."""
    given = Path("data", experiment, "train.parquet")
    given.parent.mkdir(parents=True, exist_ok=True)
    given.write_text(split)
    folder = f"results/{experiment}/runs/seed_{seed}"
    names = {"policy": "policy/manifest.json", "metrics": "metrics.parquet", "provenance": "policy/provenance.json"}
    outputs = [f"{name}={folder}/{file}" for name, file in names.items()]
    job = ("sft", params, [f"split={given}"], outputs, f"--seed={seed}")
    options = options_of(*job, experiment=experiment, runtime=runtime)
    options.provenance = Path(folder, names["provenance"])
    return options


def _path(experiment: str, name: str) -> Path:
    return Path("results", experiment, "runs/seed_3", name)


def test_the_same_is_taken_over_and_said_so() -> None:
    first, second = _run("one"), _run("two")
    assert made == ["one"]
    for name in ("policy/weights.bin", "policy/manifest.json", "metrics.parquet"):
        assert _path("one", name).read_bytes() == _path("two", name).read_bytes()
    assert second["taken_from"] == "results/one/runs/seed_3/policy/provenance.json"
    assert second["key"] == first["key"]
    assert second["experiment"] == "two"
    digests = {path: sha256_of(Path(path)) for path in second["outputs"]}
    assert second["outputs"] == digests


def test_equal_jobs_of_two_experiments_wait_for_one_another() -> None:
    """The second then has a cache hit: cells of a sweep start what they share at the same time."""
    with waiting_for_equal_job(STAGE, _options("one", "data", 3, {}, {})):
        (lock,) = Path(".state/making").glob("*.lock")
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with waiting_for_equal_job(STAGE, _options("two", "data", 3, {}, {})):
        assert [*Path(".state/making").glob("*.lock")] == [lock]
    with waiting_for_equal_job(STAGE, _options("two", "rows", 3, {}, {})):
        assert len([*Path(".state/making").glob("*.lock")]) == 2
    with waiting_for_equal_job(STAGE, _options("two", "data", 5, {"reuse": False}, {})) as descriptors:
        assert descriptors == []


def test_the_runtime_of_what_is_taken_over_is_that_of_whoever_made_it() -> None:
    """Also of a cache hit on a cache hit."""
    made_by = _run("one", micro_batch=8)["runtime"]
    assert made_by["sft"]["micro_batch_size"] == 256
    for experiment in ("two", "zwei"):
        taken = _run(experiment, micro_batch=8, runtime={"sft": {"micro_batch_size": 4}})
        assert taken["taken_from"]
        assert taken["runtime"] == made_by


@pytest.mark.parametrize(
    "changed", [{"split": "rows"}, {"seed": 4}, {"steps": 9}, {"reuse": False}, {"reusable": False}], ids=str
)
def test_whatever_differs_is_made_again(changed: dict[str, Any]) -> None:
    _run("one")
    assert "taken_from" not in _run("two", **changed)
    assert made == ["one", "two"]


@pytest.mark.parametrize("name", ["policy/weights.bin", "policy/manifest.json", "metrics.parquet"])
@pytest.mark.parametrize("content", [None, "dama", "damaged and longer"])
def test_what_is_damaged_or_gone_is_made_again(name: str, content: str | None) -> None:
    _run("one")
    path = Path("results/one/runs/seed_3", name)
    path.unlink()
    if content is not None:
        path.write_text(content)
    _run("two")
    assert made == ["one", "two"]


@pytest.mark.parametrize("name", ["policy/manifest.json", "metrics.parquet"])
def test_an_original_that_changes_while_it_is_copied_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    _run("one")
    options = _options("two", "data", 3, {}, {})
    hit = cache_hit(STAGE, options)
    assert hit is not None
    path = _path("one", name)
    path.write_text(path.read_text() + " ")
    with pytest.raises(SystemExit):
        runner.run(hit, options)
    assert f"{path} changed while it was copied: run again." in capfd.readouterr().err
    assert not options.provenance.exists()


def test_another_environment_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _run("one")
    monkeypatch.setattr("dagrpo.pipeline.record.environment", lambda **_: {"torch": "9.9"})
    assert "taken_from" not in _run("two")


LARGE = "data" * (FEWEST_LINKED // 4)
FILES = ("policy/config.json", "policy/weights.bin", "policy/manifest.json", "metrics.parquet")


@pytest.mark.parametrize("written", ["one", "two"])
def test_a_write_in_place_to_one_experiment_leaves_the_other(written: str) -> None:
    """Large weights may be read-only links: what this user, unless root, cannot write to."""
    _run("one", LARGE)
    _run("two", LARGE)
    assert made == ["one"]
    other = "two" if written == "one" else "one"
    for name in FILES:
        path = _path(written, name)
        if path.stat().st_mode & 0o222 == 0:
            assert name == "policy/weights.bin", "others are small, or written to by Snakemake"
            assert _path(other, name).stat().st_ino == path.stat().st_ino
            continue
        path.write_text("mine")
        assert _path(other, name).read_text() != "mine"


def test_a_copy_of_an_experiments_folders_or_of_a_seeds_is_no_source() -> None:
    _run("one")
    shutil.copytree("results/one", "results/backup")  # the first by name
    shutil.copytree("results/one/runs/seed_3", "results/one/runs/best")
    assert _run("two")["taken_from"] == "results/one/runs/seed_3/policy/provenance.json"
    for name in ("one", "two"):
        shutil.rmtree(f"results/{name}")
    _run("three")
    assert made == ["one", "three"]


def test_what_fails_after_it_was_taken_over_in_the_place_of_something_leaves_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Snakemake then copies the former content back, in place: through a link it would reach the other experiment."""
    _run("one")
    _run("two", "rows")
    backup = {path: path.read_bytes() for path in Path("results/two").rglob("*") if path.is_file()}

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(runner, "write_json", full)
    with pytest.raises(SystemExit):
        _run("two")
    for name in ("metrics.parquet", "policy/manifest.json"):
        path = Path("results/two/runs/seed_3", name)
        path.write_bytes(backup[path])
    one = Path("results/one/runs/seed_3/policy")
    assert sha256_of(one / "manifest.json") == read_json(one / "provenance.json")["outputs"][str(one / "manifest.json")]
    assert {path: path.read_bytes() for path in backup} == backup, "weights, too"
