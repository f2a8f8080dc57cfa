"""Check by digest that the engine holds the synced weights.

The server reports a digest of every tensor that it holds. For a few tensors, sampled for each weight sync up to a number of
bytes, they are compared with the trainer's: a digest of everything would cost the trainer a pass over the model. The digests
of all tensors show that the weights change between two weight syncs. Tensors that the engine holds in another form are not
compared (see engine/sglang/digests.py): they are covered by the probe alone.

If an adapter is synced, the weights that stay in the server are compared at its opening, and must keep their digests.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine.interface import RolloutEngine
from dagrpo.engine.sglang.adapters import is_of_an_adapter
from dagrpo.engine.sglang.digests import comparable, counterparts, not_held
from dagrpo.trainer.checks_config import Gates

COMPARED = "gate/digest_tensors"
_MEBIBYTE = 1 << 20
Ranks = list[dict[str, str]]  # the digests of each rank of a server


class WeightSyncCheck:
    """Check of every weight sync, in order; on rank 0."""

    def __init__(self, params: Gates, seed: int) -> None:
        self._params = params
        self._seed = seed
        self._states: list[Ranks] = []
        self._stay: dict[str, str] | None = None  # digests of the weights beside an adapter
        self.unchanged = 0  # weight syncs in a row: belongs to a run's state

    def check(self, engine: RolloutEngine, weights: Tensors, finished: int, *, updated: bool) -> dict[str, float]:
        """Compare digests after a weight sync; return the number of compared tensors.

        `finished` steps are in the weights; `updated`: they have been updated since the last call. Raises UserError if a
        server holds other values, or if its weights have wrongly stayed the same for some weight syncs.
        """
        if not self._params.digest_mebibytes:
            return {}
        states = [[dict(rank) for rank in server] for server in engine.digests()]
        if any(map(is_of_an_adapter, weights.specs)):
            self._require_adapter(states, weights, finished)
        compared = sum(self._compare(server, digests, weights, finished) for server, digests in enumerate(states))
        self._require_change(states, finished, updated=updated)
        self._states = states
        return {COMPARED: float(compared)}

    def _compare(self, server: int, states: Ranks, weights: Tensors, finished: int) -> int:
        known = comparable(counterparts([*states[0]], [*weights.specs]), weights, len(states))
        chosen = self._sampled(known, weights, finished)
        wrong = not_held(chosen, states, known, weights)
        if wrong:
            raise UserError(
                f"after step {finished} server {server} holds other weights than were synced: {len(wrong)} of "
                f"{len(chosen)} tensors that were compared differ, such as {wrong[0]}. Look at its log, at "
                "runtime.engine.weights_folder, and at who else updates it; a server that quantises its weights cannot be "
                "compared (training.gates.digest_mebibytes: 0)."
            )
        return len(chosen)

    def _require_adapter(self, states: Sequence[Ranks], weights: Tensors, finished: int) -> None:
        """Raise UserError unless every server reports digests of the whole adapter and keeps its other tensors unchanged."""
        adapter = {name for name in weights.specs if is_of_an_adapter(name)}
        for server, ranks in enumerate(states):
            if len(ranks) > 1:
                raise UserError(
                    f"server {server} divides the adapter over {len(ranks)} GPUs, so that it cannot be verified: start it with --tp-size "
                    "1; set training.gates.digest_mebibytes to 0, so that only the probe checks it; or set training.lora.serving to "
                    "merged."
                )
            (digests,) = ranks
            reported = {part for parts in counterparts([*digests], [*adapter]).values() for part in parts}
            if reported != adapter:
                raise UserError(
                    f"server {server} reports no digests for {len(adapter - reported)} adapter tensors, such as "
                    f"{min(adapter - reported)}, so the adapter cannot be verified: install packages/sglang_adapters where the server "
                    "runs; set training.gates.digest_mebibytes to 0, so that only the probe checks it; or set training.lora.serving to "
                    "merged."
                )
            stay = {name: digest for name, digest in digests.items() if not is_of_an_adapter(name)}
            self._stay = stay if self._stay is None else self._stay
            if stay != self._stay:
                raise UserError(
                    f"after step {finished} the base weights in server {server} have changed since it was opened: look at its log, "
                    "and at who else updates it."
                )

    def _sampled(self, known: Mapping[str, Sequence[str]], weights: Tensors, finished: int) -> list[str]:
        """Return tensors sampled by seed and step: the first one, however large, and more up to the number of bytes."""
        names = [
            sorted(known)[place] for place in np.random.default_rng([self._seed, finished, 2]).permutation(len(known))
        ]
        chosen, budget = names[:1], self._params.digest_mebibytes * _MEBIBYTE
        for name in names[1:]:
            size = sum(weights.specs[part].bytes for part in known[name])
            if size <= budget:
                chosen.append(name)
                budget -= size
        return chosen

    def _require_change(self, states: list[Ranks], finished: int, *, updated: bool) -> None:
        """Check that the digests have changed. A server that was lost meanwhile is no evidence about the others."""
        if not updated or len(states) != len(self._states):
            return
        ranks = zip(chain(*states), chain(*self._states), strict=True)
        stuck = any(now == before for now, before in ranks)
        self.unchanged = self.unchanged + 1 if stuck else 0
        if self.unchanged >= self._params.unchanged_weights:
            raise UserError(
                f"after step {finished}: in {self.unchanged} weight syncs in a row not a bit of the engine's weights has "
                "changed, although each step had a gradient: the update does not reach the synced weights, or rounding to "
                "rollout.dtype takes it away. Raise training.learning_rate, or set rollout.dtype to float32."
            )
