"""Which prompts a probe completes, how much of each, and in which layout it is scored: that of the update."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import runs, vision

from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import PictureTokens, PromptPictures, SamplingRequest
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.batches.batch import MicroBatch, PaddedBatch
from dagrpo.trainer.batches.packed_rows import PackedBatch
from dagrpo.trainer.checks import logprob_agreement
from dagrpo.trainer.checks.logprob_agreement import probe_requests
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.policy import token_logprobs


def _problem(number: int, *token_ids: int) -> Prompt:
    return Prompt(index=number, row=runs.task_row(number), text="", token_ids=token_ids)


def _requests(problems: list[Prompt], dtype: str = "float32", **gates: int | None) -> list[SamplingRequest]:
    return probe_requests(problems, Gates.model_validate(gates), Rollout(temperature=0.5), dtype, 7)


def test_a_probe_takes_the_ends_of_the_first_prompts() -> None:
    problems = [_problem(number, number, 5, 6, 7 + number) for number in range(5)]
    requests = _requests(problems, probe_prompts=2, probe_prompt_tokens=3)
    assert [request.input_ids for request in requests] == [(5, 6, 7), (5, 6, 8), (5, 6, 9), (5, 6, 10)]
    assert [request.temperature for request in requests] == [0.0, 0.0, 0.5, 0.5]


def test_shorter_prompts_are_whole_and_so_are_all_without_a_limit_or_where_too_many_end_alike() -> None:
    problems = [_problem(0, 1, 2), _problem(1, 3, 4, 5, 6)]
    ends = _requests(problems, probe_prompts=1, probe_prompt_tokens=3)
    assert [each.input_ids for each in ends] == [(1, 2), (4, 5, 6)]
    whole = _requests(problems, probe_prompts=1, probe_prompt_tokens=None)
    assert [each.input_ids for each in whole] == [(1, 2), (3, 4, 5, 6)]
    alike = [_problem(0, 1, 8, 9), _problem(1, 2, 8, 9)]
    requests = _requests([*alike, _problem(2, 3, 4, 5)], probe_prompts=1, probe_prompt_tokens=2)
    assert [each.input_ids for each in requests] == [(8, 9), (4, 5)]
    requests = _requests(alike, probe_prompts=1, probe_prompt_tokens=2)
    assert [each.input_ids for each in requests] == [(1, 8, 9), (2, 8, 9)]


def test_where_prompts_are_few_some_are_asked_again_so_that_there_is_always_a_sampled_half() -> None:
    """Otherwise nothing would show that the engine samples at another temperature."""
    alike = _requests([_problem(number, 1, 2) for number in range(8)], probe_prompts=2)
    assert [each.temperature for each in alike] == [0.0, 0.0, 0.5, 0.5]
    assert len({each.seed for each in alike}) == 4
    three = _requests([_problem(number, 1, 2 + number) for number in range(3)], probe_prompts=2)
    assert [each.input_ids for each in three] == [(1, 2), (1, 3), (1, 4), (1, 2)]
    assert not _requests([]), "on other ranks"


def test_a_prompt_with_a_picture_takes_part_and_stays_whole() -> None:
    shown = PromptPictures(files=(vision.picture(0, 56, 84),), tokens=PictureTokens(image=3, video=9, start=2, end=4))
    problems = [_problem(number, number, 5, 6, 7 + number) for number in range(4)]
    problems.append(replace(_problem(9, 1, 2, 3, 4), pictures=shown))
    requests = _requests(problems, probe_prompts=1, probe_prompt_tokens=2)
    assert [request.input_ids for request in requests] == [(1, 2, 3, 4), (6, 8)]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[MicroBatch]:
    """The batches that probes were scored in."""
    batches: list[MicroBatch] = []

    def watched(policy: Any, batch: MicroBatch, *inputs: Any) -> Any:
        batches.append(batch)
        return token_logprobs(policy, batch, *inputs)

    monkeypatch.setattr(logprob_agreement, "token_logprobs", watched)
    return batches


@pytest.mark.parametrize(("layout", "kind"), [(None, PackedBatch), ("padded", PaddedBatch)])
def test_a_probe_has_the_layout_of_the_update(
    layout: Layout | None, kind: type[MicroBatch], inputs: tuple[Path, Path], scored: list[MicroBatch], tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1, layout=layout)
    _, ((_, figures),) = runs.execute(run)
    assert [type(batch) for batch in scored] == [kind]
    assert figures["gate/probe_outside_fraction"] == 0


@pytest.mark.parametrize("share_prompts", [True, False])
def test_a_probe_shares_prompts_as_the_update_does(
    share_prompts: bool, inputs: tuple[Path, Path], scored: list[MicroBatch], tmp_path: Path
) -> None:
    """Ten problems, of which so many are asked that some are asked again: these share a prompt."""
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1, share_prompts=share_prompts)
    run = runs.changed(run, training={"gates": {"probe_prompts": 6}})
    _, ((_, figures),) = runs.execute(run)
    (batch,) = scored
    assert isinstance(batch, PackedBatch)
    assert any(batch.segments.contexts) is share_prompts
    assert figures["gate/probe_outside_fraction"] == 0
