"""`python -m dagrpo.pipeline.launch 2 tests/trainer/model/layout_ranks.py INITIAL OUT`: the layouts of a policy whose
ranks measure unlike numbers.

Each rank writes OUT/<rank>.json: the layouts, and how it is refused to share prompts where sequences are padded.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.runtime import TrainingRuntime
from dagrpo.trainer.model import prepare as gate
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.prepare import prepare_layout, resolve_budget
from dagrpo.utils.distributed import World, process_group

OWN_CHANGE = gate._change


def run(initial: Path, out: Path, world: World) -> None:
    policy = load_policy(initial, world)
    seen: dict[str, Any] = {"alike": prepare_layout(policy, None, world)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "MOST_NATS", gate.MOST_NATS if world.is_rank_zero else -1.0)
        seen["a difference in rank 1"] = prepare_layout(policy, None, world)
        seen["sharing"] = _refused_sharing(policy, world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_change", gate._change if world.is_rank_zero else _change_of_a_nat)
        seen["a leak in rank 1"] = prepare_layout(policy, None, world)
    (out / f"{world.rank}.json").write_text(json.dumps(seen))


def _change_of_a_nat(policy: Policy, *, share_prompts: bool) -> Tensor:
    return torch.ones_like(OWN_CHANGE(policy, share_prompts=share_prompts))


def _refused_sharing(policy: Policy, world: World) -> str:
    try:
        resolve_budget(TrainingRuntime(share_prompts=True), policy, world)
    except UserError as error:
        return str(error)
    return "nothing was refused"


if __name__ == "__main__":
    with process_group() as joint:
        run(Path(sys.argv[1]), Path(sys.argv[2]), joint)
