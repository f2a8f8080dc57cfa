"""Runs a stage in this process as its rule would: the tests of stages are about what they make, not about Snakemake."""

import argparse
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagrpo.pipeline import runner
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.files import write_json


def run_stage(
    stage: str, params: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], *, experiment: str = "e"
) -> None:
    """In the working directory. inputs and outputs: NAME=PATH. SystemExit as the frame raises it."""
    runner.run(all_stages()[stage], options_of(stage, params, inputs, outputs, experiment=experiment))


def options_of(
    stage: str,
    params: Mapping[str, Any],
    inputs: Iterable[str],
    outputs: Iterable[str],
    *more: str,
    experiment: str = "e",
    runtime: Mapping[str, Any] | None = None,
) -> argparse.Namespace:
    """Return the command line of a job, whose files are written into the working directory. inputs and outputs: NAME=PATH."""
    write_json(Path("job.json"), {"stage": stage, "params": params, "code": "code"})
    write_json(Path("code.json"), {})
    write_json(Path("runtime.json"), Runtime.model_validate(runtime or {}).model_dump())
    options = ["--job=job.json", "--runtime=runtime.json", f"--experiment={experiment}", f"--log=logs/{stage}.log"]
    files = [*(f"--input={pair}" for pair in inputs), *(f"--output={pair}" for pair in outputs)]
    return runner.parse([*options, *files, *more])


@pytest.fixture
def empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder in which stages run, without MLflow and DVC."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(runner, "stop_with_the_workflow", lambda: None)
    with without_open_logs():
        yield


@contextmanager
def without_open_logs() -> Iterator[None]:
    """The frame sets up logging for its process; afterwards it is as before."""
    handlers = logging.root.handlers[:]
    try:
        yield
    finally:
        for handler in logging.root.handlers:
            handler.close()
        logging.root.handlers[:] = handlers
