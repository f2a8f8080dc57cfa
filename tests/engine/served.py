"""A policy that two servers, or one of two ranks, sample in lockstep, before and after a weight sync.

`python tests/engine/served.py MODEL OTHER NODES OUT [divided] [distributed]`, in a process of a training: the servers, or the ranks of a
divided one, are on NODES other nodes, with 0 here. OTHER: the model whose weights come with the sync. OUT gets the tokens and logprobs of
both, and the digests of the weights of each rank, as JSON.
"""

import json
import sys
from pathlib import Path

from tests.engine.batches import batch

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.engine import open_engine
from dagrpo.engine.interface import RolloutEngine
from dagrpo.engine.sglang import Config


def _sampled(engine: RolloutEngine) -> list[tuple[list[int], list[float]]]:
    completions = engine.generate(batch(8, 2), lockstep=True)
    return [([*each.token_ids], [*each.logprobs]) for each in completions]


def _digests(engine: RolloutEngine) -> list[list[dict[str, str]]]:
    return [[dict(rank) for rank in held.ranks] for held in engine.digests()]


def _main(model: Path, other: Path, nodes: int, out: Path, how: list[str]) -> None:
    here = "tensor_parallel" if "divided" in how else "replicas"
    there = {"nodes_per_server": 2} if "divided" in how else {}
    config = Config.model_validate(
        {"nodes": nodes, **(there if nodes else {here: 2})}
        | {"weight_sync": "distributed" if "distributed" in how else None}
        | {"max_total_tokens": 8192, "start_timeout": 240}
    )
    log = out.with_name(f"{out.stem}.server.log")
    weights = HuggingFaceTensors(model)
    with open_engine(model, config, log, dtype="float32", deterministic=True, weights=weights) as engine:
        before = _sampled(engine), _digests(engine)
        engine.load(HuggingFaceTensors(other), "other")
        after = _sampled(engine), _digests(engine)
    out.write_text(json.dumps([before, after]))


if __name__ == "__main__":
    model, other, nodes, out, *how = sys.argv[1:]
    _main(Path(model), Path(other), int(nodes), Path(out), how)
