"""Kernels are compiled by a server that is started as the stage train starts it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from dagrpo import engine as opening
from dagrpo.cli.application import app
from dagrpo.cli.warm import model_of
from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest
from dagrpo.engine import sglang
from dagrpo.engine.servers import gpus_of
from dagrpo.utils.devices import VISIBLE, visible_devices


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    params = Params()
    Path("Snakefile").touch()
    Path("params.yaml").write_text(params_yaml(params))
    return params


def _make_model(params: Params) -> Path:
    folder = Path("models") / params.experiment.name / params.model.name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_the_server_is_that_of_the_experiment_and_samples_once(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Path, dict[str, Any]]] = []
    sampled: list[SamplingRequest] = []

    class Opened:
        def generate(self, requests: list[SamplingRequest], *, lockstep: bool) -> None:
            sampled.extend(requests)

    @contextmanager
    def open_engine(model: Path, engine: object, log: Path, **settings: Any) -> Iterator[Opened]:
        opened.append((model, settings))
        yield Opened()

    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    folder = _make_model(params)
    assert CliRunner().invoke(app, ["warm"], catch_exceptions=False).exit_code == 0
    [(model, settings)] = opened
    assert model == folder
    assert settings["dtype"] == params.rollout.dtype
    assert settings["deterministic"] == params.rollout.deterministic
    [request] = sampled
    assert request.top_p < 1 < request.top_k, "the sampler's kernels are compiled by a request that filters"


def test_one_server_is_enough_and_has_the_gpus_that_it_divides_its_model_over(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = params.runtime.engine.model_copy(update={"replicas": 2, "tensor_parallel": 2, "own_gpus": True})
    changed = params.model_copy(update={"runtime": params.runtime.model_copy(update={"engine": engine})})
    Path("params.yaml").write_text(params_yaml(changed))
    opened: list[sglang.Config] = []

    @contextmanager
    def open_engine(model: Path, engine: sglang.Config, log: Path, **settings: Any) -> Iterator[Any]:
        opened.append(engine)
        assert gpus_of(engine, visible_devices()) == ["GPU-0,GPU-1"]
        yield mock.Mock()

    monkeypatch.setenv(VISIBLE, "GPU-0,GPU-1,GPU-2,GPU-3")
    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    _make_model(params)
    assert CliRunner().invoke(app, ["warm"], catch_exceptions=False).exit_code == 0
    assert len(opened) == 1


def test_a_machine_without_a_gpu_is_told_that_nothing_is_compiled(params: Params) -> None:
    result = CliRunner().invoke(app, ["warm"])
    assert isinstance(result.exception, UserError)
    assert "torch sees no GPU" in str(result.exception)


def test_a_model_that_is_not_there_is_named_with_the_command_that_makes_it(params: Params) -> None:
    with pytest.raises(UserError, match=r"snakemake --cores all models/.*/manifest.json"):
        model_of(params)
