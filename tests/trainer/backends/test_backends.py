"""The stage train with a backend that trains by files in another process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import runs
from tests.trainer.backends.own import BACKEND, NAME, Config

from dagrpo.checkpoints import kept
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.config.schema import parse
from dagrpo.core.errors import TransientError, UserError
from dagrpo.models.fresh import make_fresh
from dagrpo.pipeline.curve import SUFFIX
from dagrpo.pipeline.declaration import Job
from dagrpo.pipeline.stages.train import STAGE
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Three steps of the tiny model, as a rule would hand them to the stage."""
    make_fresh(tmp_path / "model", runs.SHAPE, torch.float32)
    convert(tmp_path / "model", tmp_path / "initial", Checkpoint(format="huggingface"))
    outputs = {
        "policy": tmp_path / "out/policy/manifest.json",
        "metrics": tmp_path / "out/metrics.parquet",
        "rollouts": tmp_path / "out/rollouts/manifest.json",
        "held_out": tmp_path / "out/held_out.parquet",
        "kept": tmp_path / "out/kept/manifest.json",
    }
    (tmp_path / "out").mkdir()
    params = parse({"training": {"steps": 3, "backend": {"name": NAME, "added": 2.0}}})
    inputs = {name: tmp_path / name for name in ("train", "passages")}
    folders = {"initial": tmp_path / "initial/manifest.json", "teacher": tmp_path / "none/manifest.json"}
    return Job(
        stage="train",
        experiment="added",
        overrides={},
        seed=5,
        inputs={name: [path] for name, path in (inputs | folders).items()},
        outputs=outputs,
        params=params.model_dump(mode="json"),
        runtime=Runtime(),
        threads=1,
        state=tmp_path / "state",
        log=tmp_path / "train.log",
    )


def test_the_stage_hands_files_over_and_takes_checkpoint_and_metrics_back(job: Job) -> None:
    STAGE.work(job)
    manifest = verify(job.output("policy").parent)
    assert manifest.format == "huggingface"
    before, after = open_tensors(job.input("initial").parent), open_tensors(job.output("policy").parent)
    for name in before.specs:
        assert torch.allclose(after.read(name), before.read(name) + 6.0), name
    assert read_parquet(job.output("metrics")).to_pydict() == {
        "step": [1, 2, 3],
        "reward/mean": [0.25, 0.5, 0.75],
        "seed": [5.0] * 3,
    }
    assert len(job.log.with_suffix(SUFFIX).read_text().splitlines()) == 3
    assert read_json(job.output("rollouts")) == {"files": {}}
    assert read_parquet(job.output("held_out")).num_rows == 0
    assert kept.steps(job.output("kept").parent) == []


def test_a_program_that_fails_is_named_with_its_log(job: Job) -> None:
    failing = replace(job, params={**job.params, "training": {**job.params["training"], "backend": {"name": NAME}}})
    (job.input("initial").parent / "model.safetensors").unlink()
    with pytest.raises(TransientError, match=r"exit code 1: see .*train\.server\.log"):
        STAGE.work(failing)


def test_a_backend_refuses_what_it_does_not_know_when_parameters_are_read() -> None:
    backend = {"name": NAME}
    with pytest.raises(UserError, match=r"training\.staleness is not known to the backend that adds"):
        parse({"rollout": {"deterministic": False}, "training": {"backend": backend, "staleness": 1}})
    with pytest.raises(UserError, match=r"training\.keep_policies is set, but training\.backend .* hands over"):
        parse({"training": {"backend": backend, "keep_policies": [1]}})
    with pytest.raises(UserError, match="backend"):
        parse({"training": {"backend": {"name": NAME, "aded": 1.0}}})
    assert BACKEND.config is Config


def test_a_backend_of_one_machine_refuses_several_nodes() -> None:
    with pytest.raises(UserError, match=r"runtime\.nodes is 2, but training\.backend .* on one machine: set"):
        parse({"training": {"backend": {"name": NAME}}, "runtime": {"nodes": 2}})


def test_only_a_backend_that_does_not_start_its_processes_is_launched_in_all_of_them() -> None:
    own, other = ({"training": {"backend": {"name": name}}} for name in ("fsdp", NAME))
    assert STAGE.launched(own)
    assert not STAGE.launched(other)
