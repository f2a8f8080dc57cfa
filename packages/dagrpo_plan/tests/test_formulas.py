"""Figures computed by hand for Qwen3-0.6B: 596,049,920 parameters, tied embeddings of 151,936 x 1,024."""

from dataclasses import replace
from pathlib import Path

import pytest
from packages.dagrpo_plan.tests.conftest import params_with, qwen3

from dagrpo.config.schema import Params
from dagrpo.core.experiment import Experiment
from dagrpo.engine import sglang
from dagrpo_plan.amounts import GIBIBYTE, Lengths, Memory, MicroBatch, usual_training_prompt
from dagrpo_plan.machine import Speed
from dagrpo_plan.memory import (
    SHARES,
    _bytes_of_a_token,
    cache_tokens,
    disk_note,
    disk_of,
    held_beside,
    server_memory,
    share_of_a_delta,
    stages,
)
from dagrpo_plan.models import Models, Shape, policy_shape
from dagrpo_plan.times import Work, sampling_seconds, update_seconds
from dagrpo_plan.training import of_train

WEIGHTS, HEAD = 596_049_920, 155_582_464


@pytest.fixture
def shape(project: Path) -> Shape:
    return policy_shape(qwen3(), online=False)


def _process(shape: Shape, *changes: dict[str, object]) -> Memory:
    params = qwen3(*changes)
    return of_train(params, Models(policy=shape), gpu=True).memory()


def test_weights_are_counted_without_reading_any(shape: Shape) -> None:
    """Per layer q 2048, k and v 1024, o 2048, and three of 3072, all by 1024; norms of 1024 twice and of 128 twice."""
    layer = 1024 * (2048 + 2 * 1024 + 2048 + 3 * 3072) + 2 * 1024 + 2 * 128
    assert shape.weights == HEAD + 28 * layer + 1024 == WEIGHTS
    assert (shape.block, shape.outside) == (layer, HEAD + 1024)


def test_weights_gradients_and_adamw_take_sixteen_bytes_a_parameter(shape: Shape) -> None:
    process = _process(shape)
    assert process.of("weights") == process.of("gradients") == 4 * WEIGHTS == 2_384_199_680
    assert process.of("AdamW states") == 4_768_399_360
    assert process.of("reference policy") == process.of("adapter") == 0
    assert _process(shape, {"algorithm": {"kl": {"coefficient": 0.1}}}).of("reference policy") == 4 * WEIGHTS


def test_an_adapter_alone_has_gradients_and_states(shape: Shape) -> None:
    """Inputs and outputs of the seven layers: 3072, 2048, 2048, 3072 and three times 4096."""
    adapter = 16 * 28 * (3072 + 2048 + 2048 + 3072 + 3 * 4096)
    process = _process(shape, {"training": {"lora": {"rank": 16}}, "algorithm": {"kl": {"coefficient": 0.1}}})
    assert process.of("adapter") == process.of("gradients") == 4 * adapter == 40_370_176
    assert process.of("AdamW states") == 8 * adapter
    assert process.of("weights") == 4 * WEIGHTS
    assert process.of("reference policy") == 0  # it is the policy without its adapter


def test_processes_share_weights_gradients_and_states(shape: Shape) -> None:
    """And gather two blocks and the embeddings, with gradients of as much."""
    process = _process(shape, {"runtime": {"training": {"processes": 8}}})
    assert process.of("weights") == process.of("gradients") == 4 * WEIGHTS // 8
    assert process.of("AdamW states") == WEIGHTS
    assert process.of("gathered by FSDP") == 8 * (shape.outside + 2 * shape.block)
    assert process.of("gradients not yet reduced") == 0, "of one micro-batch"
    small = {"processes": 8, "micro_batch_size": 1}
    for reduced, waiting in (("each_mini_batch", 4 * WEIGHTS), ("each_micro_batch", 0)):
        process = _process(shape, {"runtime": {"training": small | {"reduce_gradients": reduced}}})
        assert process.of("gradients not yet reduced") == waiting


def test_nodes_share_what_processes_share_or_have_a_copy_each(shape: Shape) -> None:
    of_each = {"training": {"processes": 4}, "nodes": 2}
    joint = of_train(qwen3({"runtime": of_each}), Models(policy=shape), gpu=True)
    assert joint.memory().of("weights") == 4 * WEIGHTS // 8
    own = of_train(
        qwen3({"runtime": of_each}, {"runtime": {"training": {"shard_within": "node"}}}), Models(policy=shape), gpu=True
    )
    assert own.memory().of("weights") == 4 * WEIGHTS // 4
    passes = joint.passes.batch.number
    assert passes == own.passes.batch.number
    of_type = 4 if joint.passes.dtype == "float32" else 2
    assert joint.bytes_between_nodes(3) == 3 * passes * WEIGHTS * (2 * of_type + 4)
    assert own.bytes_between_nodes(3) == 3 * passes * 2 * 4 * WEIGHTS // 4
    # On one machine each of 8 receives seven eighths: per pass the weights twice in bfloat16, and float32 gradients.
    runtime = {"processes": 8, "micro_batch_size": 1, "reduce_gradients": "each_micro_batch"}
    params = qwen3({"runtime": {"training": runtime}, "training": {"dtype": "bfloat16"}})
    process = of_train(params, Models(policy=shape), gpu=True)
    assert process.bytes_on_links(1, 1.0) == process.passes.batch.number * 8 * WEIGHTS * 7 / 8


def test_a_cache_without_a_size_has_what_weights_moments_and_reserve_leave_of_the_gpu(shape: Shape) -> None:
    """SGLang reserves 10 of 80 GiB, and 512 + 1.5 x 4,096 + 128 + 512 MiB of 24 GiB; the trainer has 12 bytes a parameter and 1 GiB.

    A token takes 28 layers x 8 heads x 128, twice, in two bytes: 112 KiB.
    """
    assert shape.cached_per_token == 57_344
    server = server_memory("server", shape, sglang.Config(max_total_tokens=262_144), "bfloat16", 1, gpu=True)
    assert server.of("key-value cache") == 28 * GIBIBYTE
    null = {"max_total_tokens": None, "release_memory": True}
    params = qwen3(
        {
            "rollout": {"deterministic": False, "dtype": "bfloat16"},
            "runtime": {"engine": null, "training": {"micro_batch_size": 1}},
        }
    )
    held = 12 * WEIGHTS + GIBIBYTE
    assert held_beside(params, of_train(params, Models(policy=shape), gpu=True)) == held
    large, small = (cache_tokens(shape, params.runtime.engine, "bfloat16", size * GIBIBYTE, held) for size in (80, 24))
    assert large == int((70 / 80 * (80 * GIBIBYTE - held) - 2 * WEIGHTS) / (2 * 57_344))
    reserve = (512 + 1.5 * 4096 + 128 + 512) / 1024
    assert small == int(((24 - reserve) / 24 * (24 * GIBIBYTE - held) - 2 * WEIGHTS) / (2 * 57_344))
    given = params.runtime.engine.model_copy(update={"arguments": {"mem-fraction-static": 0.5}})
    assert cache_tokens(shape, given, "bfloat16", 80 * GIBIBYTE) == int((40 * GIBIBYTE - 2 * WEIGHTS) / (2 * 57_344))
    (train, sample) = stages(params, Models(policy=shape), on_gpu=True, memory=80 * GIBIBYTE)
    assert train.on_device[-1].of("key-value cache") == 2 * 57_344 * large
    assert sample.on_device[0].of("key-value cache") > train.on_device[-1].of("key-value cache")


def test_the_server_shares_the_device_unless_it_runs_elsewhere(shape: Shape) -> None:
    models = Models(policy=shape)
    (train, _) = stages(qwen3(), models, on_gpu=True)
    assert [memory.what for memory in train.on_device] == ["training process", "rollout server"]
    away = {"rollout": {"deterministic": False}, "runtime": {"engine": {"servers": ["http://127.0.0.1:30000"]}}}
    (train, sample) = stages(qwen3(away), models, on_gpu=True)
    assert [memory.what for memory in train.on_device] == ["training process"]
    assert sample.total == 0
    (train, _) = stages(qwen3(), replace(models, teacher=shape), on_gpu=True)
    assert train.on_device[-1].what == "server of the teacher"
    assert train.on_device[-1].of("weights") == 4 * WEIGHTS


def test_tools_make_trajectories_longer() -> None:
    """Three turns of 20 tokens and two results of 16 characters, which a fresh model reads one by one."""
    limits = {"agent": {"max_turns": 3, "max_result_characters": 16}}
    task = {"train": "arithmetic_tool", "tasks": ["arithmetic", "arithmetic_tool"]}
    params = params_with({"experiment": task, "rollout": limits})
    assert Lengths.of_training(params, 10_000) == Lengths(prompt=64, written=60, whole=64 + 60 + 32)
    assert Lengths.of_training(params, 100).whole == 100


@pytest.mark.parametrize(
    ("train", "tokens"),
    [
        ("gsm8k", 81),
        ({"gsm8k": 3, "dapo": 1}, 99),  # (3 * 81 + 153) / 4
        ({"gsm8k": 1, "dapo": 0}, 81),
        (["gsm8k", "dapo"], 132),  # (7,473 * 81 + 17,917 * 153) / 25,390
        (
            ["gsm8k", "bigmath"],
            552,
        ),  # the second's size is known once it is prepared, and its prompts take 1,024 at most
    ],
)
def test_a_mixture_has_the_mean_prompt_of_its_tasks_and_their_longest_trajectory(
    train: object, tokens: int, project: Path
) -> None:
    params = qwen3({"training": {"max_prompt_tokens": 1024}})
    names = [train] if isinstance(train, str) else list(train)  # type: ignore[call-overload]
    experiment = Experiment.model_validate({"name": "mixed", "train": train, "evaluate": names, "tasks": names})
    assert usual_training_prompt(params.model_copy(update={"experiment": experiment})) == tokens


def test_a_server_that_leaves_shares_the_device_with_a_process_at_rest_alone(shape: Shape) -> None:
    """Its weights and its cache are never there beside the activations and the gradients."""
    models, leaves = Models(policy=shape), {"runtime": {"engine": {"release_memory": True}}}
    (beside, _) = stages(qwen3(), models, on_gpu=True)
    process, server = beside.on_device
    (in_turns, _) = stages(qwen3(leaves), models, on_gpu=True)
    updating = process.total + server.of("the processes themselves")
    sampling = server.total + 12 * WEIGHTS + process.of("the process itself")
    assert process.of("gradients") == 4 * WEIGHTS, "which nobody keeps between updates"
    assert in_turns.total == max(updating, sampling) < beside.total
    assert [memory.what for memory in in_turns.on_device] == ["training process", "rollout server"]


def test_a_server_that_comes_back_adds_to_what_a_process_at_rest_keeps_and_has_gathered(shape: Shape) -> None:
    leaves = {"runtime": {"engine": {"release_memory": True, "max_total_tokens": 1 << 20}}}
    (train, _) = stages(qwen3(leaves), Models(policy=shape), on_gpu=True)
    process, server = train.on_device
    assert process.total == 12 * WEIGHTS + process.of("the process itself") + 2 * 4 * HEAD
    assert server.of("key-value cache") > 100 * GIBIBYTE


def test_a_server_with_a_gpu_to_itself_adds_nothing_to_that_of_the_policy(shape: Shape) -> None:
    models, apart = Models(policy=shape), {"runtime": {"engine": {"own_gpus": True}}}
    (beside, _) = stages(qwen3(), models, on_gpu=True)
    (alone, _) = stages(qwen3(apart), models, on_gpu=True)
    assert alone.total == max(memory.total for memory in beside.on_device)


REWARDED = {"components": {"reward_model": {"folder": "models/reward"}}}


def test_a_reward_model_counts_where_it_is_while_the_policy_is_updated(shape: Shape) -> None:
    """Beside the update if it stays, only its process if it leaves, and not at all on its own GPU."""
    models = Models(policy=shape, reward_model=shape)

    def total(**engine: bool) -> float:
        params = qwen3({"reward": REWARDED, "runtime": {"reward_model": engine}})
        return stages(params, models, on_gpu=True)[0].total

    (beside, _) = stages(qwen3(), models, on_gpu=True)
    process, server, model = beside.on_device
    assert model.what == "server of the reward model"
    assert total(own_gpus=True) == max(process.total + server.total, model.total)
    updating = process.total + server.total + model.of("the processes themselves")
    scoring = server.total + model.total + 12 * WEIGHTS + process.of("the process itself")
    assert total(release_memory=True) == max(updating, scoring)


def test_gpus_that_divide_a_model_share_its_weights_and_as_much_of_the_cache_as_there_are_key_value_heads(
    shape: Shape,
) -> None:
    """Of 8 key-value heads, each of 16 ranks has one that another has, too."""

    def server(ranks: int, *, gpu: bool, machines: int = 1) -> Memory:
        engine = sglang.Config(tensor_parallel=ranks // machines, nodes_per_server=machines, nodes=machines)
        return server_memory("server", shape, engine, "bfloat16", 1, gpu=gpu)

    cache = 2 * 65_536 * 57_344
    for ranks, shares in ((1, 1), (4, 4), (16, 8)):
        assert server(ranks, gpu=True).of("weights") == 2 * WEIGHTS // ranks
        assert server(ranks, gpu=True).of("key-value cache") == cache // shares
    assert server(4, gpu=False) == server(1, gpu=False)
    assert server(4, gpu=True, machines=2) == server(4, gpu=True)


def test_gpus_that_divide_a_model_share_the_time_of_sampling(shape: Shape) -> None:
    speed = Speed(update=1.0, fine_tuning=1.0, sampling=1e12, bandwidth=1e11, cache_bandwidth=1e11)
    alone, divided = (
        sampling_seconds(
            params := qwen3({"runtime": {"engine": {"tensor_parallel": ranks}}}),
            Models(policy=shape),
            speed,
            engine=params.runtime.engine,
            attempts=64,
            prompts=8,
            prompt=100,
            lengths=Lengths.of_training(params, shape.positions),
        )
        for ranks in (1, 4)
    )
    assert divided == pytest.approx(alone / 4)


def test_on_a_cpu_servers_are_side_by_side_have_packed_copies_of_small_weights_and_never_leave(shape: Shape) -> None:
    models = Models(policy=shape)
    (plain, _) = stages(qwen3(), models, on_gpu=False)
    assert plain.on_device[1].of("packed weights") == 0, "more than 2 GiB"
    for engine in ({"own_gpus": True}, {"release_memory": True}):
        assert stages(qwen3({"runtime": {"engine": engine}}), models, on_gpu=False)[0] == plain
    (narrow, _) = stages(qwen3({"rollout": {"dtype": "bfloat16"}}), models, on_gpu=False)
    assert narrow.on_device[1].of("packed weights") == 2 * WEIGHTS
    (train, sample) = stages(qwen3({"runtime": {"engine": {"replicas": 2}}}), models, on_gpu=False)
    assert [memory.what for memory in train.on_device].count("rollout server") == 2
    assert [memory.what for memory in sample.on_device] == ["rollout server"] * 2


def test_a_micro_batch_is_as_large_as_sequences_or_tokens_allow() -> None:
    """32 prompts x 8 samples of 64 + 20 tokens."""
    lengths = Lengths(prompt=64, written=20, whole=84)
    whole = MicroBatch.of_training(params_with(), lengths, share_prompts=False)
    assert (whole.sequences, whole.longest, whole.written, whole.number) == (256, 84, 20, 1)
    few = params_with({"runtime": {"training": {"micro_batch_tokens": 1000}}, "training": {"mini_batches": 2}})
    limited = MicroBatch.of_training(few, lengths, share_prompts=False)
    assert (limited.sequences, limited.number) == (11, 12)
    fewest = params_with({"runtime": {"training": {"micro_batch_tokens": 10}}})
    assert MicroBatch.of_training(fewest, lengths, share_prompts=False).sequences == 1
    # Of 64 tokens 63 are shared by 8 samples, which have 21 tokens each; 4 groups of 231 tokens are within 1,000.
    limits = params_with({"runtime": {"training": {"micro_batch_tokens": 1000}}})
    shared = MicroBatch.of_training(limits, lengths, share_prompts=True)
    assert (shared.sequences, shared.samples) == (32, 8)


def test_an_update_takes_the_time_of_its_products_its_attention_and_its_reading(shape: Shape) -> None:
    """1,000 tokens of 100, 600 trained: three passes of the body, four of the head, whose hidden size reaches 1 / (1 + 1170 / 1024).

    A layer's two norms and sums read and write 16 x 1,024 bytes of a token, or 84 x 1,024; queries and keys, 3,072 numbers, 8 each or 60;
    the MLP 6 x 3,072 or 10 x 3,072; a logit 98.
    """
    speed = Speed(update=1.0, fine_tuning=1.0, sampling=1.0, bandwidth=1e12, cache_bandwidth=1.0, attention=0.5)
    products = 2 * (3 * (WEIGHTS - HEAD) * 1000 + 4 * HEAD * 600) * (1 + 1170 / 1024) / 1e14
    attention = 3 * 2 * 57_344 * 100 * 1000 / 0.5e14
    layers = {
        True: 3 * 28 * (16 * 1024 + 8 * 3072 + 6 * 3072) * 1000 / 1e12,
        False: 3 * 28 * (84 * 1024 + 60 * 3072 + 10 * 3072) * 1000 / 1e12,
    }
    logits = 98 * 151_936 * 600 / 1e12
    for compiled, read in layers.items():
        work = Work(tokens=1000, trained=600, attended=100, passes=3, compiled=compiled)
        assert update_seconds(shape, work, speed, 1e14) == pytest.approx(products + attention + read + logits)


LEFT = {
    "experiment": {"seeds": [0, 1]},
    "model": {"dtype": "bfloat16"},
    "training": {"prompts_per_step": 4, "samples_per_prompt": 8, "steps": 100, "max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 20},
}


def _bytes(params: Params) -> dict[str, int]:
    return {item.name: item.bytes for item in disk_of(params, Models.of(params))}


def test_every_output_and_state_has_its_bytes(project: Path) -> None:
    """Two seeds: the last one has two states while it writes one of them, the other keeps one. Without sft, its checkpoint is a link."""
    found = _bytes(qwen3(LEFT))
    assert found["rollouts"] == (7 * (64 + 20) + 50) * 2 * 100 * 32
    assert found["states"] == (2 + 1) * 3 * 4 * WEIGHTS
    assert found["checkpoint of model"] == 2 * WEIGHTS
    assert found["checkpoint of convert"] == 2 * 2 * WEIGHTS
    assert found["checkpoint of train"] == found["checkpoint of export"] == 2 * 4 * WEIGHTS
    outputs = sum(size for name, size in found.items() if name == "rollouts" or name.startswith("checkpoint"))
    assert found["DVC's cache"] == outputs
    assert "checkpoint of sft" not in found
    tuned = _bytes(qwen3(LEFT, {"sft": {"steps": 10}}))
    assert tuned["checkpoint of sft"] == tuned["checkpoint of convert"] == 2 * 4 * WEIGHTS
    assert tuned["states of sft"] == 2 * 12 * WEIGHTS
    assert (
        not {"checkpoint of convert", "checkpoint of export"}
        & _bytes(qwen3(LEFT, {"checkpoint": {"format": "huggingface"}})).keys()
    ), "equal ones are links"
    kept = _bytes(
        qwen3(LEFT, {"training": {"keep_policies": [1, 21], "learning_rate": 1e-5}, "rollout": {"dtype": "bfloat16"}})
    )
    one, many = SHARES["bfloat16"][1]
    assert kept["kept policies"] == pytest.approx(2 * (one + many) * 2 * WEIGHTS)
    assert kept["whole policies"] == 2 * 2 * WEIGHTS
    assert kept["DVC's cache"] == found["DVC's cache"] + kept["kept policies"]
    adapter = 16 * 28 * (3072 + 2048 + 2048 + 3072 + 3 * 4096)
    assert _bytes(qwen3(LEFT, {"training": {"lora": {"rank": 16}}}))["states"] == 3 * 12 * adapter


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "keep_states"),
        ({"training": {"steps": 20_000}, "rollout": {"max_new_tokens": 4096}}, "runtime.keep_rollouts"),
    ],
)
def test_what_does_not_fit_on_the_disk_has_a_remedy_for_the_largest_item(
    changes: dict[str, object], remedy: str, project: Path
) -> None:
    params = qwen3(LEFT, changes)
    items = disk_of(params, Models.of(params))
    total = sum(item.bytes for item in items)
    assert disk_note(items, total) is None
    note = disk_note(items, total - 1)
    assert note is not None
    assert remedy in note


def test_a_difference_grows_with_steps_and_learning_rate() -> None:
    (one, many), (more, _), _ = SHARES["bfloat16"]
    assert share_of_a_delta(1e-6, 1, "bfloat16") == pytest.approx(one)
    assert share_of_a_delta(1e-6, 20, "bfloat16") == pytest.approx(many)
    assert one < share_of_a_delta(3e-6, 1, "bfloat16") < more
    assert many < share_of_a_delta(1e-6, 100, "bfloat16") < share_of_a_delta(1e-6, 100, "float16") <= 1


def test_the_plan_counts_what_is_kept() -> None:
    assert _bytes_of_a_token("all", 10, 16) == 7
    assert _bytes_of_a_token(5, 10, 16) == pytest.approx(7 * 3 / 10)  # steps 1, 5 and 10
    assert _bytes_of_a_token("best_and_worst", 10, 16) == pytest.approx(7 / 8)
    assert _bytes_of_a_token("none", 10, 16) == 0
