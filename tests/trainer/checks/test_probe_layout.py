"""A probe is scored in the layout that the update computes in: it would show nothing of another one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import runs
from tests.trainer.conftest import inputs

from dagrpo.trainer.batches.batch import MicroBatch, PaddedBatch
from dagrpo.trainer.batches.packed_rows import PackedBatch
from dagrpo.trainer.checks import logprob_agreement
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.policy import token_logprobs

__all__ = ["inputs"]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[MicroBatch]:
    """The batches that probes were scored in."""
    batches: list[MicroBatch] = []

    def watched(policy: Any, batch: MicroBatch, *inputs: Any) -> Any:
        batches.append(batch)
        return token_logprobs(policy, batch, *inputs)

    monkeypatch.setattr(logprob_agreement, "token_logprobs", watched)
    return batches


@pytest.mark.parametrize(("layout", "kind"), [(None, PackedBatch), ("packed", PackedBatch), ("padded", PaddedBatch)])
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
    gates = {"probe_prompts": 6}
    run = replace(run, training=Training.model_validate(run.training.model_dump() | {"gates": gates}))
    _, ((_, figures),) = runs.execute(run)
    (batch,) = scored
    assert isinstance(batch, PackedBatch)
    assert any(batch.segments.contexts) is share_prompts
    assert figures["gate/probe_outside_fraction"] == 0
