"""Kept policies of a run, one after the other in one engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dagrpo.checkpoints.kept import open_kept, read_kept
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine import capabilities_of
from dagrpo.engine.interface import RolloutEngine
from dagrpo.evaluation.config import STEP
from dagrpo.evaluation.sampling import VERSION_DIGITS, Checkpoint, SplitAttempts, opened


@contextmanager
def opened_kept(
    attempts: SplitAttempts, kept: Path, initial: Path, trained: Path | None = None
) -> Iterator[Callable[[str], Checkpoint]]:
    """Open an engine for a run's policies; yield a function that returns that of a name, such as step_40, as a checkpoint to sample from.

    `attempts.model`: the base policy, which gives configuration and tokenizer. `kept` and `initial`: folders as for `open_kept`; `trained`:
    that of the policy `trained`. Weights change in the running engine, when a checkpoint's engine is asked for; what it has cached of other
    weights is forgotten. Raises UserError for a step that is not kept, and if the engine then holds other weights.
    """
    with opened(attempts, keep_pictures=False) as base:
        held = ""

        def holding(policy: str) -> RolloutEngine:
            nonlocal held
            engine = base.engine()
            if policy != held:
                if trained is not None and policy == "trained":
                    tensors, digest = open_tensors(trained), verify(trained).tensors.digest
                else:
                    step = int(policy.removeprefix(STEP))
                    tensors, digest = open_kept(kept, initial, step), read_kept(kept).policies[step].digest
                weights = CastTensors(tensors, NAMED_DTYPES[attempts.dtype])
                engine.load(weights, digest[:VERSION_DIGITS])
                if capabilities_of(attempts.engine).weight_digest:
                    _require_held(engine, weights, policy)
                held = policy
            return engine

        yield lambda policy: replace(base, engine=partial(holding, policy))


def _require_held(engine: RolloutEngine, weights: Tensors, policy: str) -> None:
    """Raise UserError unless every server reports these weights' digests, for all tensors whose form is known."""
    for number, server in enumerate(engine.digests()):
        if wrong := server.differing(server.comparable(weights), weights):
            raise UserError(
                f"server {number} holds other weights than those of {policy}: {len(wrong)} tensors differ, such as "
                f"{wrong[0]}. Look at its log, and at who else updates it."
            )
