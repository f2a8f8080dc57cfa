"""A policy that two servers sample in lockstep, before and after a weight sync.

`python tests/engine/served.py MODEL OTHER NODES OUT [distributed]`, in a process of a training: its servers are on NODES other nodes, with
0 here. OTHER: the model whose weights come with the sync. OUT gets the tokens and logprobs of both, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Literal

from tests.engine.batches import batch

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.engine import open_engine
from dagrpo.engine.interface import RolloutEngine
from dagrpo.engine.sglang import Config


def _sampled(engine: RolloutEngine) -> list[tuple[list[int], list[float]]]:
    completions = engine.generate(batch(8, 2), lockstep=True)
    return [([*each.token_ids], [*each.logprobs]) for each in completions]


def _main(model: Path, other: Path, nodes: int, out: Path, weight_sync: Literal["distributed"] | None) -> None:
    replicas = 1 if nodes else 2
    config = Config(nodes=nodes, replicas=replicas, weight_sync=weight_sync, max_total_tokens=8192, start_timeout=240)
    log = out.with_name(f"{out.stem}.server.log")
    weights = HuggingFaceTensors(model)
    with open_engine(model, config, log, dtype="float32", deterministic=True, weights=weights) as engine:
        before = _sampled(engine)
        engine.load(HuggingFaceTensors(other), "other")
        after = _sampled(engine)
    out.write_text(json.dumps([before, after]))


if __name__ == "__main__":
    model, other, nodes, out, *road = sys.argv[1:]
    _main(Path(model), Path(other), int(nodes), Path(out), "distributed" if road else None)
