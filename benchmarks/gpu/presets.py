"""Tables of docs/gpu.md and docs/cluster.md, by the plan: published models on hardware, and rates beside published ones."""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig

from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params, parse
from dagrpo.models.published import CONFIGS
from dagrpo.trainer.state.tensors import state_bytes
from dagrpo.utils.console import size
from dagrpo.utils.yaml_text import read_yaml
from dagrpo_plan.machine import Machine, machine_for, speed_of
from dagrpo_plan.measured import Measured
from dagrpo_plan.models import Models, Shape
from dagrpo_plan.outcome import NETWORK
from dagrpo_plan.remedy import fullest
from dagrpo_plan.times import StageSeconds, Work, seconds_of_stages, update_seconds
from dagrpo_plan.training import of_train

PRESETS = Path(__file__).parents[2] / "presets"
CARDS = {"h100": "H100", "h200": "H200", "a100": "A100", "l40s": "L40S", "rtx4090": "RTX 4090"}
# Each model with the hardware that has room for it, of each kind where there is one.
FITTING = {
    "qwen2_5_0_5b": ("h100", "h200", "a100", "l40s", "rtx4090"),
    "qwen2_5_1_5b": ("h100", "h200", "a100", "l40s", "rtx4090_x2"),
    "qwen2_5_3b": ("h100", "h200", "a100", "l40s_x2", "rtx4090_x4"),
    "qwen2_5_7b": ("h100_x4", "h200_x2", "a100_x4", "l40s_x8"),
    "qwen3_0_6b": ("h100", "h200", "a100", "l40s", "rtx4090"),
    "qwen3_1_7b": ("h100", "h200", "a100", "l40s", "rtx4090_x4"),
    "qwen3_4b": ("h100_x2", "h200", "a100_x2", "l40s_x4"),
    "qwen3_8b": ("h100_x4", "h200_x2", "a100_x4"),
}

LLAMA, TITAN = "meta-llama/Llama-3.1-8B-Instruct", "torchtitan, docs/performance.md"
# What was published, tokens/s of a GPU, by whom, and its model, GPU, length, passes (3, or 4 computed again), whether layers are compiled.
PRIME = "prime-rl, 559b447"
PUBLISHED = (
    ("Qwen3-0.6B, RL, 16,384, recomputed, H100", 16_447, PRIME, "Qwen/Qwen3-0.6B", "H100", 16_384, 4, True),
    ("the same, SFT, flash attention 3", 25_486, PRIME, "Qwen/Qwen3-0.6B", "H100", 16_384, 4, True),
    ("Qwen3-4B, SFT, 16,384, recomputed, 8 H100", 6_215, PRIME, "Qwen/Qwen3-4B", "H100", 16_384, 4, True),
    ("Llama 3.1 8B, 8,192, 8 H100 of 500 W", 5_762, TITAN, LLAMA, "H100", 8192, 3, False),
    ("the same, compiled", 6_667, TITAN, LLAMA, "H100", 8192, 3, True),
    ("Llama 3 8B, 8,192, 64 A100", 2_973, TITAN, LLAMA, "A100", 8192, 3, True),
)


def repository_of(model: str) -> str:
    """Return the repository on the hub that a preset names."""
    return str(read_yaml(PRESETS / f"models/{model}.yaml")["model"]["repository"])


@cache
def shape_of(model: str, folder: Path) -> Shape:
    """Return the shape of a published model; its config is written into the folder."""
    (folder / "config.json").write_text(json.dumps(CONFIGS[repository_of(model)]))
    return Shape.of(AutoConfig.from_pretrained(folder, local_files_only=True))


def planned(names: list[str], folder: Path) -> tuple[Params, Models, Machine]:
    """Return parameters, shapes and machine of presets, the first a model and the last hardware; the folder holds a config."""
    params = composed(names, PRESETS)
    card = names[-1].partition("_x")[0]
    shapes = Models(policy=shape_of(names[0], folder))
    return params, shapes, machine_for(CARDS[card], None)


def train_of(params: Params, shapes: Models, machine: Machine) -> StageSeconds:
    """Return the time of the stage train."""
    speed = speed_of(machine, params)
    (train,) = (each for each in seconds_of_stages(params, shapes, speed, Measured()) if each.stage == "train")
    return train


def rows(folder: Path) -> Iterator[str]:
    """Yield the table, one line of Markdown at a time."""
    yield "| model | hardware | memory of a GPU | of it | update, tokens/s | rollout | step | 400 steps |"
    yield "|---|---|---|---|---|---|---|---|"
    for model, fitting in FITTING.items():
        for hardware in fitting:
            params, shapes, machine = planned([model, "gsm8k", "grpo", hardware], folder)
            total, train = fullest(params, shapes, machine).total, train_of(params, shapes, machine)
            step, whole, tokens = sum(train.of_a_step.values()), train.seconds, train.tokens_per_second
            assert whole is not None
            assert tokens is not None
            yield (
                f"| {model} | {hardware} | {total / 2**30:.0f} GiB | {total / machine.memory:.0%} | "
                f"{round(tokens, -2):,.0f} | {train.of_a_step['rollout'] / 60:.1f} min | {step / 60:.1f} min | "
                f"{whole / 3600:.0f} h |"
            )


def rate_of(repository: str, card: str, length: int, *, passes: int, compiled: bool, folder: Path) -> float:
    """Return the tokens per second of an update in bfloat16 on one GPU, of sequences of `length` tokens that are trained on whole.

    passes: forward passes that it takes as long as: 3, with recomputation 4.
    """
    (folder / "config.json").write_text(json.dumps(CONFIGS[repository]))
    shape = Shape.of(AutoConfig.from_pretrained(folder, local_files_only=True))
    speed = speed_of(machine_for(card, None), composed(["qwen2_5_0_5b", "gsm8k", "grpo", "h100"], PRESETS))
    assert speed is not None
    work = Work(tokens=1, trained=1, attended=length, passes=passes, compiled=compiled)
    return 1 / update_seconds(shape, work, speed, speed.update)


def published_rows(folder: Path) -> Iterator[str]:
    """Yield the table of published rates."""
    yield "| update in bfloat16 | published, tokens/s of a GPU | by | plan | plan / published |"
    yield "|---|---|---|---|---|"
    for what, published, source, repository, card, length, passes, compiled in PUBLISHED:
        rate = rate_of(repository, card, length, passes=passes, compiled=compiled, folder=folder)
        yield f"| {what} | {published:,} | {source} | {round(rate, -2):,.0f} | {rate / published:.2f} |"


# Seconds of a step of verl with Qwen2.5-Math-7B on 32 H20 (verl, recipe one_step_off_policy): 512 prompts x 16, 16 mini-batches.
VERL = {"rollout": 321, "old logprobs": 88, "update": 286, "step": 749}
SAME_BATCH = {
    "rollout": {"max_new_tokens": 1100},
    "training": {
        "prompts_per_step": 512,
        "samples_per_prompt": 16,
        "mini_batches": 16,
        "dynamic_sampling": {"oversampling": 1.0},
    },
}


def dapo_rows(folder: Path) -> Iterator[str]:
    """Yield the table of a step of Qwen2.5-7B with DAPO on 8 H100."""
    params, shapes, machine = planned(["qwen2_5_7b", "dapo_math", "dapo", "h100_x8"], folder)

    def seconds(changes: dict[str, Any]) -> dict[str, float]:
        changed = parse(merged(params.model_dump(), changes))
        parts = dict(train_of(changed, shapes, machine).of_a_step)
        if changed.training.mini_batches > 1:  # then the policy runs once more, before its updates
            alone = merged(changes, {"training": {"mini_batches": 1}})
            update = seconds(alone)["update"]
            parts |= {"old logprobs": parts["update"] - update, "update": update}
        return parts | {"step": sum(parts.values())}

    preset, same = seconds({}), seconds(SAME_BATCH)
    yield "| Qwen2.5-7B, DAPO, 8 H100 | the preset, 256 x 16,384 tokens | 8,192 x 1,100 tokens | verl, 32 H20, 8,192 x 1,100 tokens |"
    yield "|---|---|---|---|"
    for part in ("rollout", "old logprobs", "update", "weight sync", "saving", "step"):
        cells = [f"{each[part]:.0f} s" if part in each else "" for each in (preset, same, VERL)]
        yield f"| {part} | {' | '.join(cells)} |"


# Large models on nodes of 8 H100, their servers on other nodes: nodes, sequences of a pass, nodes of servers, nodes of each server.
LARGE = {"Qwen/Qwen2.5-32B": (8, 4, 2, 1), "Qwen/Qwen3-235B-A22B": (16, 2, 8, 2)}


def _large(model: str, folder: Path, shard_within: str) -> tuple[Params, Models, Machine]:
    nodes, sequences, serving, each = LARGE[model]
    changes = {
        "data": {"max_prompt_tokens": 1024},
        "rollout": {"max_new_tokens": 4096},
        "training": {"prompts_per_step": 128, "samples_per_prompt": 16, "max_prompt_tokens": 1024},
        "runtime": {
            "nodes": nodes,
            "engine": {"nodes": serving, "nodes_per_server": each, "tensor_parallel": 8, "replicas": 1, "release_memory": False},
            "training": {"micro_batch_size": sequences, "micro_batch_tokens": None, "shard_within": shard_within},
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(CONFIGS[model]))
    shape = Shape.of(AutoConfig.from_pretrained(folder, local_files_only=True))
    params = composed(["qwen2_5_32b_base", "dapo_math", "grpo", "h100_x8"], PRESETS)
    return parse(merged(params.model_dump(), changes)), Models(policy=shape), machine_for("H100", None)


def _cells_of_large(model: str, folder: Path) -> Iterator[str]:
    """Yield the column of a large model in the table of docs/cluster.md."""
    params, shapes, machine = _large(model, folder, "all")
    process, parts = of_train(params, shapes, gpu=True), train_of(params, shapes, machine).of_a_step
    memory, rate = process.memory(), train_of(params, shapes, machine).tokens_per_second or 0
    largest = sorted(memory.items, key=lambda item: -item.bytes)[:3]
    sent = process.bytes_between_nodes(1)
    nodes, sequences, serving, each = LARGE[model]
    yield f"{model.partition('/')[2]} on {8 * nodes} GPUs, {sequences} sequences a pass"
    yield f"{size(memory.total)}: " + ", ".join(f"{item.name} {size(item.bytes)}" for item in largest)
    yield f"{parts['update']:.0f} s, {round(rate, -3):,.0f} tokens/s"
    yield f"{serving // each} servers of {8 * each} GPUs: {parts['rollout']:.0f} s"
    yield f"{sent / 1e12:.1f} TB to each process, {sent / NETWORK:.0f} s at 400 Gb/s for each GPU"
    yield size(of_train(*_large(model, folder, "node")[:2], gpu=True).memory().total)
    yield f"{parts['weight sync'] / 60:.0f} min"
    yield size(state_bytes(process.trained.trained, process.moments))


def large_rows(folder: Path) -> Iterator[str]:
    """Yield the table of large models in docs/cluster.md, as far as it is the plan's."""
    names = ("", "memory of a training process", "an update", "a rollout", "from other nodes, beside the update",
             "memory with a copy on each node (HSDP)", "weight sync through a folder at 1 GB/s", "a state")  # fmt: skip
    for number, cells in enumerate(zip(names, *(_cells_of_large(model, folder) for model in LARGE), strict=True)):
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield "|---|---|---|"


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        for table in (rows, published_rows, dapo_rows, large_rows):
            sys.stdout.writelines(f"{row}\n" for row in table(Path(name)))
