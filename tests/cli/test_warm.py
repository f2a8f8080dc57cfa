"""Kernels are compiled by a server that is started as the stage train starts it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dagrpo import engine as opening
from dagrpo.cli.application import app
from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import Params
from dagrpo.core.types import SamplingRequest
from dagrpo.engine import sglang
from dagrpo.engine.servers import gpus_of
from dagrpo.utils.devices import VISIBLE, visible_devices

ENGINE = {"replicas": 2, "tensor_parallel": 2, "own_gpus": True}
PARAMS = Params.model_validate({"runtime": {"engine": ENGINE}})
MODEL = Path("models") / PARAMS.experiment.name / PARAMS.model.name


def test_one_server_of_the_experiment_has_the_gpus_that_it_divides_its_model_over_and_samples_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    sampled: list[SamplingRequest] = []

    class Opened:
        def generate(self, requests: list[SamplingRequest], *, lockstep: bool) -> None:
            sampled.extend(requests)

    @contextmanager
    def open_engine(model: Path, engine: sglang.Config, log: Path, **settings: Any) -> Iterator[Opened]:
        opened.append({"model": model, "gpus": gpus_of(engine, visible_devices()), **settings})
        yield Opened()

    monkeypatch.chdir(tmp_path)
    Path("Snakefile").touch()
    Path("params.yaml").write_text(params_yaml(PARAMS))
    warm = partial(CliRunner().invoke, app, ["warm"])
    assert "torch sees no GPU" in str(warm().exception)
    monkeypatch.setenv(VISIBLE, "GPU-0,GPU-1,GPU-2,GPU-3")
    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "snakemake --cores all models/" in str(warm().exception)
    MODEL.mkdir(parents=True)
    (MODEL / "config.json").write_text("{}")
    assert warm().exit_code == 0
    ((settings,), (request,)) = opened, sampled
    assert (settings["model"], settings["gpus"]) == (MODEL, ["GPU-0,GPU-1"])
    assert settings["dtype"] == PARAMS.rollout.dtype
    assert request.top_p < 1 < request.top_k, "the sampler's kernels are compiled by a request that filters"
