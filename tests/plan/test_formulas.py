"""Figures computed by hand for Qwen3-0.6B: 596,049,920 parameters, tied embeddings of 151,936 x 1,024."""

from pathlib import Path
from typing import Any

import pytest
from tests.plan.conftest import params_with, qwen3

from dagrpo.params.runtime import Engine
from dagrpo.plan.activations import of_layers, of_logits, per_token
from dagrpo.plan.amounts import GIBIBYTE, Memory
from dagrpo.plan.memory import Models, stages
from dagrpo.plan.models import policy_shape
from dagrpo.plan.sequences import Lengths, MicroBatch
from dagrpo.plan.server import cache_bytes, server_memory
from dagrpo.plan.shape import Shape
from dagrpo.plan.speed import Speed
from dagrpo.plan.training import of_train
from dagrpo.plan.work import Passes, forward_flops, passes_of, sampling_seconds, update_flops

WEIGHTS, HEAD = 596_049_920, 155_582_464


@pytest.fixture
def shape(project: Path) -> Shape:
    return policy_shape(qwen3(), online=False)


def _process(shape: Shape, *changes: dict[str, object]) -> Memory:
    params = qwen3(*changes)
    return of_train(params, shape, Lengths.of_training(params, shape.positions), None, gpu=True).memory("process")


def test_weights_are_counted_without_reading_any(shape: Shape) -> None:
    """Per layer q 2048, k and v 1024, o 2048, and three of 3072, all by 1024; norms of 1024 twice and of 128 twice."""
    layer = 1024 * (2048 + 2 * 1024 + 2048 + 3 * 3072) + 2 * 1024 + 2 * 128
    assert shape.weights == HEAD + 28 * layer + 1024 == WEIGHTS
    assert (shape.largest, shape.block, shape.outside) == (HEAD, layer, HEAD + 1024)


def test_weights_gradients_and_adamw_take_sixteen_bytes_a_parameter(shape: Shape) -> None:
    process = _process(shape)
    assert process.of("weights") == process.of("gradients") == 4 * WEIGHTS == 2_384_199_680
    assert process.of("AdamW states") == 4_768_399_360
    assert process.of("reference policy") == process.of("computed copy") == process.of("adapter") == 0


def test_a_reference_has_weights_of_its_own(shape: Shape) -> None:
    assert _process(shape, {"algorithm": {"kl": {"coefficient": 0.1}}}).of("reference policy") == 4 * WEIGHTS


def test_in_bfloat16_there_is_a_copy_to_compute_with(shape: Shape) -> None:
    """And of the largest tensor a gradient in both types, on its way to the weights."""
    process = _process(shape, {"training": {"dtype": "bfloat16"}})
    assert process.of("computed copy") == 2 * WEIGHTS + 6 * HEAD == 2_125_594_624
    assert process.of("weights") == 4 * WEIGHTS


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


def test_gradients_that_wait_for_the_last_micro_batch_are_whole(shape: Shape) -> None:
    runtime = {"processes": 8, "micro_batch_size": 1}
    waiting, sent = (
        _process(shape, {"runtime": {"training": runtime | {"reduce_gradients": each}}})
        for each in ("each_mini_batch", "each_micro_batch")
    )
    assert waiting.of("gradients not yet reduced") == 4 * WEIGHTS
    assert sent.of("gradients not yet reduced") == 0
    assert _process(shape, {"runtime": {"training": {"processes": 8}}}).of("gradients not yet reduced") == 0  # one pass


def test_sixteen_thousand_logits_of_a_large_vocabulary_take_ten_gigabytes(shape: Shape) -> None:
    """16,384 x 151,936 in float32; and 2**26 of them at a time three times more, on a GPU."""
    logits, read = 16_384 * 151_936, 2**26
    assert of_logits(shape.vocabulary, 16_384, 4, gpu=True) == 4 * logits + 12 * read == 10_762_584_064
    assert of_logits(shape.vocabulary, 16_384, 2, gpu=True) == 2 * logits + 12 * read
    assert of_logits(shape.vocabulary, 16_384, 4, gpu=True, reference=True) == 8 * logits + 12 * read
    assert of_logits(shape.vocabulary, 16_384, 4, gpu=True, support=True) == 4 * logits + 13 * read
    assert of_logits(shape.vocabulary, 16_384, 4, gpu=False) == 4 * logits + 12 * 2**19


def test_a_head_in_chunks_has_the_logits_of_one_chunk(shape: Shape) -> None:
    whole, chunks = (_process(shape, {"runtime": {"training": {"head_chunk_tokens": chunk}}}) for chunk in (None, 512))
    assert chunks.of("logits") == 4 * 512 * 151_936 + 12 * 2**26 < whole.of("logits")


def test_a_head_in_float32_is_there_once_more_beside_fewer_bits(shape: Shape) -> None:
    """Weights and their gradient, 151,936 x 1024 each, and a row of 1024 for each trained token."""
    half, whole = (
        _process(shape, {"training": {"dtype": dtype}, "rollout": {"head_dtype": "float32"}})
        for dtype in ("float16", "float32")
    )
    trained = half.of("float32 head") // (4 * 1024) - 2 * 151_936
    assert half.of("float32 head") == 4 * 1024 * (2 * 151_936 + trained)
    assert trained > 0
    assert whole.of("float32 head") == 0


def test_checkpointed_activations_are_the_inputs_of_layers_and_one_layer(shape: Shape) -> None:
    """1024 in bfloat16 for each of 28 layers, 77,776 of one as below, and 2 x (3 x 3072 + 2 x 1024) of gradients."""
    batch = MicroBatch(sequences=2, tokens=2000, trained=100, longest=1000, number=1)
    assert of_layers(shape.text, batch, 2, checkpointed=True) == 2000 * (28 * 2048 + 77_776 + 22_528)


def test_a_token_keeps_a_third_of_a_megabyte_in_a_layer(shape: Shape) -> None:
    """Of 1,000 tokens in bfloat16: 2 x 1024 x 8, 4 x 2048 x 2, (2048 + 1024) x 6, 4 x 3072 x 2, and a mask of 1000 x 2."""
    assert per_token(shape.text, 1000, 2) == 16_384 + 16_384 + 18_432 + 24_576 + 2_000 == 77_776


def test_a_cache_has_a_key_and_a_value_for_each_layer_and_token(shape: Shape) -> None:
    """28 layers x 8 heads x 128, twice, in two bytes: 112 KiB a token."""
    assert shape.cached_per_token == 57_344
    assert cache_bytes(shape, 262_144, "bfloat16") == 28 * GIBIBYTE


def test_the_server_shares_the_device_unless_it_runs_elsewhere(shape: Shape) -> None:
    models = Models(policy=shape, teacher=None, pixels=None)
    (train, _) = stages(qwen3(), models, on_gpu=True)
    assert [memory.what for memory in train.on_device] == ["training process", "SGLang server"]
    assert train.certain == 16 * WEIGHTS
    away = {"rollout": {"deterministic": False}, "runtime": {"engine": {"servers": ["http://127.0.0.1:30000"]}}}
    (train, sample) = stages(qwen3(away), models, on_gpu=True)
    assert [memory.what for memory in train.on_device] == ["training process"]
    assert sample.total == 0


def test_a_teacher_has_a_server_of_its_own(shape: Shape) -> None:
    models = Models(policy=shape, teacher=shape, pixels=None)
    (train, _) = stages(qwen3(), models, on_gpu=True)
    assert train.on_device[-1].what == "SGLang server of the teacher"
    assert train.on_device[-1].of("weights") == 4 * WEIGHTS


@pytest.mark.parametrize(
    ("dtype", "gpu", "expected"),
    [
        ("float32", False, 0),  # more than 2 GiB
        ("bfloat16", False, 2 * WEIGHTS),
        ("float16", False, 0),
        ("bfloat16", True, 0),
    ],
)
def test_on_a_cpu_the_server_has_packed_copies_of_a_small_models_weights(
    shape: Shape, dtype: str, gpu: bool, expected: int
) -> None:
    models = Models(policy=shape, teacher=None, pixels=None)
    (train, _) = stages(qwen3({"rollout": {"dtype": dtype}}), models, on_gpu=gpu)
    assert train.on_device[1].of("packed weights") == expected


def test_on_a_cpu_processes_and_the_handed_over_weights_are_side_by_side(shape: Shape) -> None:
    models = Models(policy=shape, teacher=None, pixels=None)
    (train, _) = stages(qwen3({"runtime": {"training": {"processes": 2}}}), models, on_gpu=False)
    names = [memory.what for memory in train.on_device]
    assert names == ["training process", "training process", "SGLang server", "hand-over in /dev/shm"]
    assert train.on_device[-1].total == 4 * WEIGHTS


def test_a_micro_batch_is_as_large_as_sequences_or_tokens_allow() -> None:
    """32 prompts x 8 samples of 64 + 20 tokens."""
    lengths = Lengths(prompt=64, written=20, whole=84)
    whole = MicroBatch.of_training(params_with(), lengths, share_prompts=False)
    assert (whole.sequences, whole.tokens, whole.trained, whole.number) == (256, 256 * 84, 256 * 20, 1)
    few = params_with({"runtime": {"training": {"micro_batch_tokens": 1000}}, "training": {"mini_batches": 2}})
    limited = MicroBatch.of_training(few, lengths, share_prompts=False)
    assert (limited.sequences, limited.tokens, limited.number) == (11, 1000, 12)
    assert limited.trained == 1000  # of short prompts nearly all tokens are trained on
    fewest = params_with({"runtime": {"training": {"micro_batch_tokens": 10}}})
    one = MicroBatch.of_training(fewest, lengths, share_prompts=False)
    assert (one.sequences, one.tokens, one.trained) == (1, 84, 84)


def test_a_micro_batch_has_each_shared_prompt_once_beside_what_follows_it() -> None:
    """Of 64 tokens 63 are shared by 8 samples, which have 21 tokens each; 4 groups of 231 tokens are within 1,000."""
    lengths = Lengths(prompt=64, written=20, whole=84)

    def batch(**runtime: Any) -> MicroBatch:
        return MicroBatch.of_training(params_with({"runtime": {"training": runtime}}), lengths, share_prompts=True)

    whole = batch()
    assert (whole.sequences, whole.tokens, whole.prompts, whole.prompt) == (256, 256 * 21, 32, 63)
    part = batch(micro_batch_size=12)
    assert (part.sequences, part.tokens, part.prompts, part.longest) == (12, 12 * 21, 2, 84)
    limited = batch(micro_batch_tokens=1000)
    assert (limited.sequences, limited.tokens, limited.prompts) == (32, 1000 - 4 * 63, 4)
    alone = batch(micro_batch_size=1)
    assert (alone.tokens, alone.prompts, alone.prompt) == (84, 0, 0)


def test_tools_make_trajectories_longer() -> None:
    """Three turns of 20 tokens and two results of 16 characters, which a fresh model reads one by one."""
    limits = {"agent": {"max_turns": 3, "max_result_characters": 16}}
    task = {"train": "arithmetic_tool", "tasks": ["arithmetic", "arithmetic_tool"]}
    params = params_with({"experiment": task, "rollout": limits})
    assert Lengths.of_training(params, 10_000) == Lengths(prompt=64, written=60, whole=64 + 60 + 32)
    assert Lengths.of_training(params, 100).whole == 100


def test_a_forward_pass_computes_the_head_for_trained_tokens_alone(shape: Shape) -> None:
    body, attention = 2 * (WEIGHTS - HEAD) * 1000, 2 * 57_344 * 1000**2
    assert forward_flops(shape, 1, 1000, 200) == body + 2 * HEAD * 200 + attention
    once = forward_flops(shape, 4, 1000, 200)
    assert update_flops(shape, 4, 1000, 200, Passes(forward=0), adapter=False) == 3 * once
    assert update_flops(shape, 4, 1000, 200, Passes(forward=2), adapter=True) == 4 * once


@pytest.mark.parametrize(
    ("changes", "forward"),
    [
        ({}, 0),
        ({"training": {"mini_batches": 2}}, 1),
        ({"algorithm": {"kl": {"coefficient": 0.1}}}, 1),
        ({"algorithm": {"kl": {"coefficient": 0.1}}, "training": {"mini_batches": 2}}, 2),
    ],
)
def test_old_and_reference_logprobs_are_passes_of_their_own(changes: dict[str, object], forward: int) -> None:
    assert passes_of(params_with(changes)).forward == forward


def test_a_server_that_leaves_shares_the_device_with_a_process_at_rest_alone(shape: Shape) -> None:
    """Its weights and its cache are never there beside the activations and the gradients."""
    models, leaves = Models(policy=shape, teacher=None, pixels=None), {"runtime": {"engine": {"release_memory": True}}}
    (beside, _) = stages(qwen3(), models, on_gpu=True)
    process, server = beside.on_device
    (in_turns, _) = stages(qwen3(leaves), models, on_gpu=True)
    updating = process.total + server.of("the processes themselves")
    sampling = server.total + 12 * WEIGHTS + process.of("the process itself")
    assert process.of("gradients") == 4 * WEIGHTS, "which nobody keeps between updates"
    assert in_turns.total == max(updating, sampling) < beside.total
    assert [memory.what for memory in in_turns.on_device] == ["training process", "SGLang server"]


def test_fine_tuning_in_bfloat16_is_reckoned_with_a_copy_and_half_of_the_activations(shape: Shape) -> None:
    models, steps = Models(policy=shape, teacher=None, pixels=None), {"sft": {"steps": 1}}
    (exact, *_), (rounded, *_) = (
        stages(qwen3(steps, {"sft": {"dtype": dtype}}), models, on_gpu=True) for dtype in ("float32", "bfloat16")
    )
    (before,), (after,) = exact.on_device, rounded.on_device
    assert before.of("computed copy") == 0
    assert after.of("computed copy") > 2 * WEIGHTS
    assert after.of("activations") < before.of("activations")


def test_on_a_cpu_nothing_leaves(shape: Shape) -> None:
    models, leaves = Models(policy=shape, teacher=None, pixels=None), {"runtime": {"engine": {"release_memory": True}}}
    assert stages(qwen3(leaves), models, on_gpu=False)[0].total == stages(qwen3(), models, on_gpu=False)[0].total


def test_a_server_with_a_gpu_to_itself_adds_nothing_to_that_of_the_policy(shape: Shape) -> None:
    models, apart = Models(policy=shape, teacher=None, pixels=None), {"runtime": {"engine": {"own_gpus": True}}}
    (beside, _) = stages(qwen3(), models, on_gpu=True)
    (alone, _) = stages(qwen3(apart), models, on_gpu=True)
    assert alone.total == max(memory.total for memory in beside.on_device)
    (on_cpu, _) = stages(qwen3(apart), models, on_gpu=False)
    assert on_cpu == stages(qwen3(), models, on_gpu=False)[0]


def test_gpus_that_divide_a_model_share_its_weights_and_as_much_of_the_cache_as_there_are_key_value_heads(
    shape: Shape,
) -> None:
    """Of 8 key-value heads, each of 16 ranks has one that another has, too."""

    def server(ranks: int, *, gpu: bool) -> Memory:
        return server_memory("server", shape, Engine(tensor_parallel=ranks), "bfloat16", 1, gpu=gpu)

    cache = cache_bytes(shape, 65_536, "bfloat16")
    for ranks, shares in ((1, 1), (4, 4), (16, 8)):
        assert server(ranks, gpu=True).of("weights") == 2 * WEIGHTS // ranks
        assert server(ranks, gpu=True).of("key-value cache") == cache // shares
    assert server(4, gpu=False) == server(1, gpu=False)


def test_gpus_that_divide_a_model_share_the_time_of_sampling(shape: Shape) -> None:
    speed = Speed(update=1.0, fine_tuning=1.0, sampling=1e12, bandwidth=1e11, cache_bandwidth=1e11)
    alone, divided = (
        sampling_seconds(
            shape,
            params := qwen3({"runtime": {"engine": {"tensor_parallel": ranks}}}),
            speed,
            attempts=64,
            prompts=8,
            prompt=100,
            lengths=Lengths.of_training(params, shape.positions),
        )
        for ranks in (1, 4)
    )
    assert divided == pytest.approx(alone / 4)


def test_on_a_cpu_servers_are_side_by_side(shape: Shape) -> None:
    models = Models(policy=shape, teacher=None, pixels=None)
    (train, sample) = stages(qwen3({"runtime": {"engine": {"replicas": 2}}}), models, on_gpu=False)
    assert [memory.what for memory in train.on_device].count("SGLang server") == 2
    assert [memory.what for memory in sample.on_device] == ["SGLang server"] * 2
