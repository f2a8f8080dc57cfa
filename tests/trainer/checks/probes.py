"""Probes of an engine against a policy."""

from collections.abc import Sequence
from pathlib import Path

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Row
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.checks.logprob_agreement import Probe
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.policy import Policy
from dagrpo.utils.distributed import single_process


def probe_on(model: Path, policy: Policy, rows: Sequence[Row], state: Path, rollout: Rollout) -> Probe:
    """Return a probe on problems that the model's tokenizer writes; a table of a refused one goes to `state`."""
    renderer = PromptRenderer(load_tokenizer(model), rollout, processor_of(model))
    prompts: list[Prompt] = [renderer.prompt(number, row) for number, row in enumerate(rows)]
    return Probe(
        params=Gates(),
        rollout=rollout,
        prompts=prompts,
        dtype=rollout.dtype,
        policy=policy,
        budget=Budget(sequences=8),
        pad_token_id=0,
        state=state,
        seed=7,
        world=single_process(),
    )
