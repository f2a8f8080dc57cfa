"""How many threads compute is the stage's word: no machine, no --cores and no environment changes it."""

import os

import pytest
import torch

from dagrpo.pipeline.declaration import threads_of
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import process_group
from dagrpo.utils.threads import READ_BY_LIBRARIES, fix_threads


@pytest.mark.parametrize("stage", ["sft", "train"])
@pytest.mark.parametrize(("processes", "threads"), [(1, 2), (2, 1), (4, 1)])
def test_each_process_has_its_share_of_what_its_stage_declares(stage: str, processes: int, threads: int) -> None:
    section = {"sft": "sft", "train": "training"}[stage]
    runtime = Runtime.model_validate({section: {"processes": processes}})
    assert threads_of(all_stages()[stage], runtime) == threads


@pytest.mark.parametrize(("processes", "threads", "cores"), [(1, 1, 1), (1, 4, 4), (2, 3, 6)])
def test_training_computes_with_as_many_threads_as_its_parameter_says(processes: int, threads: int, cores: int) -> None:
    runtime = Runtime.model_validate({"training": {"processes": processes, "threads": threads}})
    stage = all_stages()["train"]
    assert threads_of(stage, runtime) == threads
    assert stage.needs(runtime).threads == cores


def test_what_the_environment_says_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READ_BY_LIBRARIES:
        monkeypatch.setenv(name, "64")
    fix_threads(2)
    assert {os.environ[name] for name in READ_BY_LIBRARIES} == {"2"}


def test_threads_of_a_process_group_are_those_it_is_given() -> None:
    before = torch.get_num_threads()
    try:
        with process_group(3):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
