"""Check by digest that the engine holds the synced weights.

The server reports a digest of every tensor that it holds. For a few tensors, sampled for each weight sync up to a number of
bytes, they are compared with the trainer's: a digest of everything would cost the trainer a pass over the model. The digests
of all tensors show that the weights change between two weight syncs. Tensors that the engine holds in another form are not
compared (see HeldWeights in engine/interface.py): they are covered by the probe alone.

If an adapter is synced, the weights that stay in the server are compared at its opening, and must keep their digests.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from dagrpo.checkpoints.lora_layers import PREFIX
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine.interface import HeldWeights, RolloutEngine
from dagrpo.trainer.config.checks import Gates

COMPARED = "gate/digest_tensors"
_MEBIBYTE = 1 << 20
Ranks = list[dict[str, str]]  # digests of each rank of a server


class WeightSyncCheck:
    """Check of every weight sync, in order; on rank 0."""

    def __init__(self, params: Gates, seed: int) -> None:
        self._params = params
        self._seed = seed
        self._digests: list[Ranks] = []
        self._stay: dict[str, str] | None = None  # digests of the weights beside an adapter
        self.unchanged = 0  # weight syncs in a row: belongs to a run's state

    def check(self, engine: RolloutEngine, weights: Tensors, finished: int, *, updated: bool) -> dict[str, float]:
        """Compare digests after a weight sync; return the number of compared tensors.

        `finished` steps are in the weights; `updated`: they have been updated since the last call. Raises UserError if a
        server holds other values, or if its weights have wrongly stayed the same for some weight syncs.
        """
        if not self._params.digest_mebibytes:
            return {}
        servers = engine.digests()
        if any(map(_is_of_adapter, weights.specs)):
            self._require_adapter(servers, weights, finished)
        compared = sum(self._compare(number, server, weights, finished) for number, server in enumerate(servers))
        digests = [[dict(rank) for rank in server.ranks] for server in servers]
        self._require_change(digests, finished, updated=updated)
        self._digests = digests
        return {COMPARED: float(compared)}

    def _compare(self, number: int, server: HeldWeights, weights: Tensors, finished: int) -> int:
        known = server.comparable(weights)
        chosen = self._sampled(known, weights, finished)
        wrong = server.differing({name: known[name] for name in chosen}, weights)
        if wrong:
            raise UserError(
                f"after step {finished} server {number} holds other weights than were synced: {len(wrong)} of "
                f"{len(chosen)} tensors that were compared differ, such as {wrong[0]}. Look at its log, at "
                "runtime.engine.weights_folder, and at who else updates it; a server that quantises its weights cannot be "
                "compared (training.gates.digest_mebibytes: 0)."
            )
        return len(chosen)

    def _require_adapter(self, servers: Sequence[HeldWeights], weights: Tensors, finished: int) -> None:
        """Raise UserError unless every server reports digests of the whole adapter and keeps its other tensors unchanged."""
        adapter = {name for name in weights.specs if _is_of_adapter(name)}
        for number, server in enumerate(servers):
            if len(server.ranks) > 1:
                raise UserError(
                    f"server {number} divides the adapter over {len(server.ranks)} GPUs, so that it cannot be verified: start it on one "
                    "GPU; set training.gates.digest_mebibytes to 0, so that only the probe checks it; or set training.lora.serving to "
                    "merged."
                )
            (digests,) = server.ranks
            missing = adapter - {part for parts in server.comparable(weights).values() for part in parts}
            if missing:
                raise UserError(
                    f"server {number} reports no digests for {len(missing)} adapter tensors, such as {min(missing)}, so the adapter "
                    "cannot be verified: install the engine's plug-in for digests where the server runs (for SGLang "
                    "packages/dagrpo_sglang_adapters); set training.gates.digest_mebibytes to 0, so that only the probe checks it; or set "
                    "training.lora.serving to merged."
                )
            stay = {name: digest for name, digest in digests.items() if not _is_of_adapter(name)}
            self._stay = stay if self._stay is None else self._stay
            if stay != self._stay:
                raise UserError(
                    f"after step {finished} the base weights in server {number} have changed since it was opened: look at its log, "
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

    def _require_change(self, digests: list[Ranks], finished: int, *, updated: bool) -> None:
        """Check that the digests have changed. A server that was lost meanwhile is no evidence about the others."""
        if not updated or len(digests) != len(self._digests):
            return
        ranks = zip(chain(*digests), chain(*self._digests), strict=True)
        stuck = any(now == before for now, before in ranks)
        self.unchanged = self.unchanged + 1 if stuck else 0
        if self.unchanged >= self._params.unchanged_weights:
            raise UserError(
                f"after step {finished}: in {self.unchanged} weight syncs in a row not a bit of the engine's weights has "
                "changed, although each step had a gradient: the update does not reach the synced weights, or rounding to "
                "rollout.dtype takes it away. Raise training.learning_rate, or set rollout.dtype to float32."
            )


def _is_of_adapter(name: str) -> bool:
    """Return True if a tensor, as a server or a weight sync names it, is a part of an adapter."""
    return name.startswith(PREFIX)
