"""One job for several tasks: each has its record, what is made already is kept, and what they share is opened once."""

import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.running import empty_project, options_of
from tests.waiting import wait_until

from dagrpo.core.errors import UserError
from dagrpo.pipeline import runner
from dagrpo.pipeline.cache import is_made
from dagrpo.pipeline.declaration import Job, Stage
from dagrpo.pipeline.stages import sample_kept, validate
from dagrpo.pipeline.supervisor import _supervise
from dagrpo.utils.files import read_json, sha256_of, write_json

done: list[str] = []  # "open", "close", and each task that was sampled
COMPLETIONS = "completions.parquet"
__all__ = ["empty_project"]


@pytest.fixture(autouse=True)
def _in_an_empty_project(empty_project: None) -> None:
    done.clear()


@contextmanager
def _engine() -> Iterator[str]:
    done.append("open")
    try:
        yield "says"
    finally:
        done.append("close")


def _work(job: Job) -> None:
    task = job.input("test").parent.name
    if job.input("test").read_text() == "broken":
        raise UserError(f"{task} is broken.")
    done.append(task) if job.shared.opened(_engine) else None
    job.output("completions").parent.mkdir(parents=True, exist_ok=True)
    job.output("completions").write_text(f"{job.input('model').read_text()} {job.input('test').read_text()}")


STAGE = Stage(name="sample", work=_work, reads=("evaluation",), spreads=("task",))


OF_ALL_SEEDS = replace(STAGE, seeded=lambda params, inputs: False)


def _folder(task: str, experiment: str = "e", seed: int = 3) -> Path:
    return Path(f"results/{experiment}/runs/seed_{seed}/eval/{task}/base")


def _run(
    tasks: Sequence[str],
    experiment: str = "e",
    *,
    seed: int = 3,
    stage: Stage = STAGE,
    model: str = "m",
    reuse: bool = True,
    **tests: str,
) -> list[str]:
    """Run the job of one policy for some tasks; what was done for it. `tests`: the split of a task, where it is not its name."""
    done.clear()
    manifest = Path(f"results/{experiment}/runs/seed_{seed}/sft.txt")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(model)
    inputs, outputs = [f"model={manifest}"], list[str]()
    for task in tasks:
        split = Path("data", experiment, task, "test.parquet")
        split.parent.mkdir(parents=True, exist_ok=True)
        split.write_text(tests.get(task, task))
        folder = _folder(task, experiment, seed)
        inputs.append(f"test@{task}={split}")
        outputs.append(f"completions@{task}={folder / COMPLETIONS}")
        outputs.append(f"provenance@{task}={folder}/completions.provenance.json")
    more = (f"--seed={seed}", f"--log=logs/{experiment}/seed_{seed}/sample_base.log")
    options = options_of("sample", {}, inputs, outputs, *more, experiment=experiment, runtime={"reuse": reuse})
    if not is_made(stage, options):
        runner.run(stage, options)
    return list(done)


def _record(task: str, experiment: str = "e", seed: int = 3) -> dict[str, Any]:
    record: dict[str, Any] = read_json(_folder(task, experiment, seed) / "completions.provenance.json")
    return record


def _remove_outputs() -> None:
    """As Snakemake does when a job fails whose outputs were not there before."""
    for path in Path("results/e").rglob("completions.*"):
        path.unlink()


def test_three_tasks_share_an_engine_and_each_has_a_record_of_its_own_files() -> None:
    assert _run(["one", "two", "three"]) == ["open", "one", "two", "three", "close"]
    record = _record("two")
    completions = _folder("two") / COMPLETIONS
    assert completions.read_text() == "m two"
    assert record["outputs"] == {str(completions): sha256_of(completions)}
    assert sorted(record["inputs"]) == ["data/e/two/test.parquet", "results/e/runs/seed_3/sft.txt"]
    assert len({_record(task)["key"] for task in ("one", "two", "three")}) == 3
    assert len(list((runner.RAN / "e").iterdir())) == 3
    assert len(list(Path("logs/e/seed_3").glob("sample_base.*.execution.json"))) == 3


def test_another_task_is_sampled_alone_and_again_nothing() -> None:
    _run(["one", "two"])
    before = {task: _record(task) for task in ("one", "two")}
    assert _run(["one", "two", "three"]) == ["open", "three", "close"]
    assert {task: _record(task) for task in ("one", "two")} == before
    assert _run(["one", "two", "three"]) == []
    assert _run(["one", "two", "three"], reuse=False) == ["open", "one", "two", "three", "close"]


def test_a_task_whose_split_changed_is_sampled_alone_and_another_policy_samples_all() -> None:
    _run(["one", "two"])
    assert _run(["one", "two"], two="other") == ["open", "two", "close"]
    (_folder("one") / COMPLETIONS).write_text("damaged")
    assert _run(["one", "two"], two="other") == ["open", "one", "close"]
    assert _run(["one", "two"], model="other") == ["open", "one", "two", "close"]


def test_what_another_experiment_has_is_taken_and_opens_no_engine() -> None:
    _run(["one", "two"])
    assert _run(["two", "one"], "other") == []
    assert _record("two", "other")["taken_from"] == str(_folder("two") / "completions.provenance.json")
    assert (_folder("two", "other") / COMPLETIONS).read_bytes() == (_folder("two") / COMPLETIONS).read_bytes()
    assert _run(["one", "three"], "third") == ["open", "three", "close"]


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_finished_when_the_job_fails_is_not_made_again(is_there: bool) -> None:
    if is_there:
        _run(["one"], one="former")
    former = (_folder("one") / COMPLETIONS).read_bytes() if is_there else b""
    with pytest.raises(SystemExit):
        _run(["one", "two"], two="broken")
    assert done == ["open", "one", "close"]
    record = _record("one")
    assert not list(runner.RAN.glob("e/*.json")) or is_there
    if is_there:
        (_folder("one") / COMPLETIONS).write_bytes(former)  # in place, as Snakemake does
    else:
        _remove_outputs()
    assert _run(["one", "two"], reuse=False) == ["open", "two", "close"]
    assert _record("one") == record
    assert (_folder("one") / COMPLETIONS).read_text() == "m one"
    assert not list(Path(".state").glob("e-*/finished")), "what the job has kept until its end"
    shutil.rmtree("results/e/runs")
    assert _run(["one", "two"], reuse=False) == ["open", "one", "two", "close"]


def test_parts_with_the_same_inputs_keep_nothing_for_each_other() -> None:
    def write_name(job: Job) -> None:
        folder = job.output("completions").parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMPLETIONS).write_text(folder.parent.name)

    stage = replace(STAGE, work=write_name, spreads=("step", "task"))
    folders = {f"{step}.one": _folder(f"step_{step}") for step in (2, 4)}
    outputs = [f"completions@{part}={folder / COMPLETIONS}" for part, folder in folders.items()]
    outputs += [f"provenance@{part}={folder}/completions.provenance.json" for part, folder in folders.items()]
    runner.run(stage, options_of("sample", {}, [], outputs, "--seed=3", "--log=logs/e/x.log", experiment="e"))
    assert [(folder / COMPLETIONS).read_text() for folder in folders.values()] == ["step_2", "step_4"]


def _kept_run(stage: Stage, policies: dict[str, str], trained: str = "t") -> list[str]:
    """Run a job of kept policies with those digests in their list; the folders of those that were sampled."""
    run = Path("results/e/runs/seed_3")
    listed = {step: {"digest": digest, "after": 0} for step, digest in policies.items()}
    write_json(run / "kept/manifest.json", {"initial": "i", "policies": listed, "files": {}})
    files = {name: run / f"{name}.txt" for name in ("model", "initial", "test", "trained", "passages")}
    for name, path in files.items():
        path.write_text(trained if name == "trained" else name)
    inputs = [f"{name}={path}" for name, path in files.items() if name in stage.inputs]
    names = [f"step_{step}" for step in policies] + ["trained"] * ("trained" in stage.inputs)
    outputs = [f"completions@{name}.one={run}/eval/one/{name}/{COMPLETIONS}" for name in names]
    outputs += [f"provenance@{name}.one={run}/eval/one/{name}/completions.provenance.json" for name in names]
    sampled = list[str]()

    def work(job: Job) -> None:
        sampled.append(job.output("completions").parent.name)
        job.output("completions").parent.mkdir(parents=True, exist_ok=True)
        job.output("completions").write_text("completions")

    more = ("--seed=3", "--log=logs/e/x.log")
    manifest = f"kept={run}/kept/manifest.json"
    options = options_of(stage.name, {}, [*inputs, manifest], outputs, *more, experiment="e")
    _supervise(replace(stage, work=work, restarts=0), options, (), ())
    return sampled


@pytest.mark.parametrize("stage", [sample_kept.STAGE, validate.STAGE], ids=lambda stage: stage.name)
def test_one_more_kept_policy_is_sampled_alone(stage: Stage) -> None:
    of_trained = ["trained"] * ("trained" in stage.inputs)
    assert _kept_run(stage, {"20": "a", "60": "c"}) == ["step_20", "step_60", *of_trained]
    assert _kept_run(stage, {"20": "a", "40": "b", "60": "c"}) == ["step_40"]
    assert _kept_run(stage, {"20": "a", "40": "b", "60": "c"}) == []
    assert _kept_run(stage, {"20": "a", "40": "b", "60": "other"}) == ["step_60"]
    assert _kept_run(stage, {"20": "a", "60": "other"}, trained="longer") == of_trained
    manifest = Path("results/e/runs/seed_3/kept/manifest.json")
    for provenance in (manifest.parents[1] / f"eval/one/step_{step}/completions.provenance.json" for step in (20, 60)):
        assert read_json(provenance)["inputs"][str(manifest)] == sha256_of(manifest), "what is there is current"
    assert len(list((runner.RAN / "e").iterdir())) == 3 + len(of_trained)


def test_what_is_the_same_for_all_seeds_is_sampled_by_one_and_linked_by_the_others() -> None:
    assert _run(["one"], stage=OF_ALL_SEEDS) == ["open", "one", "close"]
    assert _run(["one"], seed=4, stage=OF_ALL_SEEDS) == []
    first, second = _record("one"), _record("one", seed=4)
    assert second["taken_from"] == str(_folder("one") / "completions.provenance.json")
    assert (first["key"], first["seed"], second["seed"]) == (second["key"], 3, 4)
    assert list(second["outputs"]) == [str(_folder("one", seed=4) / COMPLETIONS)]
    assert (_folder("one", seed=4) / COMPLETIONS).read_bytes() == (_folder("one") / COMPLETIONS).read_bytes()
    assert _run(["one"], "other", seed=7, stage=OF_ALL_SEEDS) == []
    shutil.copytree("results/e/runs/seed_3", "results/e/runs/backup")  # sorts first
    assert _run(["one"], seed=8, stage=OF_ALL_SEEDS) == []
    assert _run(["one"], seed=5, stage=OF_ALL_SEEDS, model="another") == ["open", "one", "close"]
    assert _run(["one"], seed=6, stage=OF_ALL_SEEDS, reuse=False) == ["open", "one", "close"]


def test_of_two_seeds_at_once_one_samples_and_the_other_waits(capfd: pytest.CaptureFixture[str]) -> None:
    def slowly(job: Job) -> None:
        Path("begun").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        _work(job)

    fork = multiprocessing.get_context("fork")
    slow = replace(OF_ALL_SEEDS, work=slowly)
    first = fork.Process(target=_run, args=(["one"],), kwargs={"stage": slow})
    second = fork.Process(target=_run, args=(["one"],), kwargs={"stage": slow, "seed": 4})
    first.start()
    wait_until(Path("begun").exists)
    second.start()
    wait_until(lambda: "Waiting for" in capfd.readouterr().err)
    assert not (_folder("one", seed=4) / COMPLETIONS).exists()
    Path("go").touch()
    for process in (first, second):
        process.join(30)
        assert process.exitcode == 0
    assert (_folder("one", seed=4) / COMPLETIONS).read_bytes() == (_folder("one") / COMPLETIONS).read_bytes()
