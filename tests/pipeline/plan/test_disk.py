"""Bytes on disk, computed by hand for Qwen3-0.6B in bfloat16: 596,049,920 parameters."""

from pathlib import Path

import pytest
from tests.pipeline.plan.conftest import qwen3

from dagrpo.config.schema import Params
from dagrpo.pipeline.plan.memory import _bytes_of_a_token, disk_note, disk_of
from dagrpo.pipeline.plan.models import Models

WEIGHTS = 596_049_920
RUN = {
    "experiment": {"seeds": [0, 1]},
    "model": {"dtype": "bfloat16"},
    "training": {"prompts_per_step": 4, "samples_per_prompt": 8, "steps": 100, "max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 20},
}


def _bytes(params: Params) -> dict[str, int]:
    return {item.name: item.bytes for item in disk_of(params, Models.of(params))}


def test_every_output_and_state_has_its_bytes(project: Path) -> None:
    """Two seeds: the last one has two states while it writes one of them, the other keeps one. Without sft, its checkpoint is a link."""
    found = _bytes(qwen3(RUN))
    assert found["rollouts"] == (7 * (64 + 20) + 50) * 2 * 100 * 32
    assert found["states"] == (2 + 1) * 3 * 4 * WEIGHTS
    assert found["checkpoint of model"] == 2 * WEIGHTS
    assert found["checkpoint of convert"] == 2 * 2 * WEIGHTS
    assert found["checkpoint of train"] == found["checkpoint of export"] == 2 * 4 * WEIGHTS
    outputs = sum(size for name, size in found.items() if name == "rollouts" or name.startswith("checkpoint"))
    assert found["DVC's cache"] == outputs
    assert "checkpoint of sft" not in found
    tuned = _bytes(qwen3(RUN, {"sft": {"steps": 10}}))
    assert tuned["checkpoint of sft"] == tuned["checkpoint of convert"] == 2 * 4 * WEIGHTS
    assert tuned["states of sft"] == 2 * 12 * WEIGHTS


def test_equal_checkpoints_are_links(project: Path) -> None:
    found = _bytes(qwen3(RUN, {"checkpoint": {"format": "huggingface"}}))
    assert not {"checkpoint of convert", "checkpoint of export"} & found.keys()


def test_a_state_of_an_adapter_has_the_adapter_alone(project: Path) -> None:
    adapter = 16 * 28 * (3072 + 2048 + 2048 + 3072 + 3 * 4096)
    assert _bytes(qwen3(RUN, {"training": {"lora": {"rank": 16}}}))["states"] == 3 * 12 * adapter


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "keep_states"),
        ({"training": {"steps": 20_000}, "rollout": {"max_new_tokens": 4096}}, "runtime.keep_rollouts"),
    ],
)
def test_what_does_not_fit_on_the_disk_has_a_remedy_for_the_largest_item(
    changes: dict[str, object], remedy: str, project: Path
) -> None:
    params = qwen3(RUN, changes)
    items = disk_of(params, Models.of(params))
    total = sum(item.bytes for item in items)
    assert disk_note(items, total) is None
    note = disk_note(items, total - 1)
    assert note is not None
    assert remedy in note


def test_the_plan_counts_what_is_kept() -> None:
    assert _bytes_of_a_token("all", 10, 16) == 7
    assert _bytes_of_a_token(5, 10, 16) == pytest.approx(7 * 3 / 10)  # steps 1, 5 and 10
    assert _bytes_of_a_token("best_and_worst", 10, 16) == pytest.approx(7 / 8)
    assert _bytes_of_a_token("none", 10, 16) == 0
