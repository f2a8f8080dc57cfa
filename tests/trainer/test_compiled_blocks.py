"""Blocks that torch compiles: one graph for batches of any lengths, in packed rows as a GPU attends to them and in padded ones."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import vision
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from dagrpo.checkpoints.lora_layers import low_rank_updates
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model import attention
from dagrpo.trainer.model.fsdp import _shard_policy, checkpoint_activations
from dagrpo.trainer.model.lora import WithoutAdapter, add_adapter, begin
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.prepare import compile_layers, prepare_compilation
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.utils.distributed import World

CPU = torch.device("cpu")
WORLD = World(rank=0, size=1, device=CPU)
LENGTHS = ([20, 30, 9], [17, 40, 11, 5], [33, 33, 8], [50, 12])


def attention_of_any_lengths(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, seen_ends: Tensor, *longest: int, **options: Any
) -> Tensor:
    """Return what the GPU's kernel does: [tokens, heads, head size]."""
    segment, place = _places(query, ends)
    seen_segment, seen_place = _places(key, seen_ends)
    # After the tokens of the prompt that a segment follows.
    last = (place + (seen_ends.diff() - ends.diff())[segment])[:, None]
    mask = (segment[:, None] == seen_segment) & (seen_place <= last)
    window = options["window_size"][0]
    if window >= 0:
        mask = mask & (seen_place >= last - window)
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, mask, scale=options["scale"], enable_gqa=True)
    return output[0].transpose(0, 1)


def _places(tokens: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    everywhere = torch.arange(tokens.shape[0])
    segment = torch.searchsorted(ends, everywhere, right=True) - 1
    return segment, everywhere - ends[segment]


def _batch(lengths: list[int], layout: str) -> MicroBatch:
    ids = [[1, 2, 3, *range(4, length + 1)] for length in lengths]
    whole = TokenSequences.of(ids, [[False] * 3 + [True] * (length - 3) for length in lengths])
    share = layout == "shared prompts"
    return whole.lay_out(range(len(ids)), 0, CPU, "padded" if layout == "padded" else "packed", share_prompts=share)


def _policy(case: str = "") -> Policy:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape = Qwen2Config(**sizes, **heads, **(WINDOWS if "windows" in case else {}))
    policy = Policy(Qwen2ForCausalLM(shape).eval(), dtype=torch.bfloat16 if "bfloat16" in case else torch.float32)
    if "an adapter" in case:
        add_adapter(policy.model, Lora(rank=2, alpha=4))
        begin(policy.model, 0)
    if "recomputed" in case:
        checkpoint_activations(policy.model)
    policy.take_packed()
    return policy


@pytest.fixture(autouse=True)
def _nothing_compiled_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DAGRPO_CACHE", str(tmp_path / "cache"))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that it is unset in the end
        monkeypatch.delenv(name)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


# Layout, policy, and graphs: one, or two where the first layer is unlike the others.
CASES = [
    ("padded", "float32", 1),
    ("shared prompts", "windows, bfloat16", 2),
    ("packed", "bfloat16, recomputed", 1),
    ("packed", "an adapter, recomputed", 2),
    ("packed", "float32", 1),
    ("shared prompts", "float32", 1),
    ("padded", "bfloat16, recomputed", 1),
    ("padded", "an adapter", 2),
    ("padded", "windows", 1),
    ("packed", "windows", 2),
]
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}  # from the second layer on


@pytest.fixture
def _attends_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "is_for_kernel", lambda query, value: True)
    monkeypatch.setattr(attention, "_is_narrow_on_cpu", lambda query: False)  # a GPU attends in 16 bits
    monkeypatch.setattr(attention, "varlen_attn", attention_of_any_lengths)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("layout", "case", "graphs"), CASES)
@pytest.mark.usefixtures("_attends_as_on_a_gpu")
def test_few_graphs_without_breaks_take_batches_of_any_lengths(
    layout: str, case: str, graphs: int, backend: str
) -> None:
    _require_graphs(_policy(case), [_batch(lengths, layout) for lengths in LENGTHS], graphs, backend)


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "tower"), [("qwen2_5_vl", "trained"), ("qwen3_vl", "frozen")])
def test_one_graph_takes_sequences_with_pictures_and_the_tower_has_none(
    family: str, tower: Vision, tmp_path: Path
) -> None:
    policy = vision.policy_of(family, tmp_path, tower).float()
    rows = ([0, 1, 2], [1, 3, 4, 0], [2, 3], [0, 4])
    batches = [vision.sequences(each).lay_out(range(len(each)), 0, CPU, "padded") for each in rows]
    _require_graphs(policy, batches, 1, "aot_eager")


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["float32", "bfloat16, recomputed"])
@pytest.mark.usefixtures("_attends_as_on_a_gpu")
def test_one_graph_takes_weights_that_two_processes_share(case: str) -> None:
    """The other process of the group answers with this one's share, compiled or not."""
    policy = _policy(case)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        _shard_policy(policy, init_device_mesh("cpu", (2,)), World(rank=0, size=2, device=CPU))
        _require_graphs(policy, [_batch(lengths, "packed") for lengths in LENGTHS], 1, "aot_eager")
    finally:
        dist.destroy_process_group()


@pytest.mark.nightly
def test_a_policy_without_its_adapter_takes_one_graph_more() -> None:
    policy = _policy("an adapter")
    for update in low_rank_updates(policy.model).values():
        torch.nn.init.ones_(update.up)
    batch, reference = _batch(LENGTHS[0], "padded"), WithoutAdapter(policy)
    known = _computed(policy, batch)[0], token_logprobs(reference, batch, 1.0).logprobs
    assert not torch.equal(*known)
    compile_layers(policy, "aot_eager")
    now = _computed(policy, batch)[0], token_logprobs(reference, batch, 1.0).logprobs
    torch.testing.assert_close(now, known, rtol=0, atol=1e-5)
    assert (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())) == (3, 0)


@pytest.mark.nightly
@pytest.mark.usefixtures("_attends_as_on_a_gpu")
def test_a_compiled_layer_is_a_third_of_the_kernels() -> None:
    """Count calls in what Inductor generates: 170 kernels a layer are counted uncompiled (tests/made_up_gpu)."""
    policy = _policy("bfloat16, recomputed")
    compile_layers(policy)
    _, graphs = run_and_get_code(_computed, policy, _batch(LENGTHS[0], "packed"))
    calls = re.findall(
        r"^ +(?!def )\S*(?:cpp_fused|extern_kernels\.|run_\w*_rng_state)", "\n".join(graphs), re.MULTILINE
    )
    assert 30 < len(calls) < 57


def _require_graphs(policy: Policy, batches: Sequence[MicroBatch], graphs: int, backend: str) -> None:
    """Check that logprobs and gradients are those of layers that are not compiled, to 1e-5 in float32."""
    uncompiled = [_computed(policy, batch) for batch in batches]
    compile_layers(policy, backend)
    near = 2e-2 if policy.dtype == torch.bfloat16 else 1e-5
    for batch, known in zip(batches, uncompiled, strict=True):
        for now, before in zip(_computed(policy, batch), known, strict=True):
            assert float((now - before).norm()) <= near * max(1.0, float(before.norm()))
    assert (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())) == (graphs, 0)


def _computed(policy: Policy, batch: MicroBatch) -> tuple[Tensor, ...]:
    policy.zero_grad()
    logprobs = token_logprobs(policy, batch, 1.0).logprobs
    torch.autograd.backward(logprobs.sum())
    gradients = [each.grad for each in policy.parameters() if each.grad is not None]
    return logprobs.detach(), *(each.to_local() if isinstance(each, DTensor) else each for each in gradients)


def test_what_inductor_compiles_is_kept_for_the_next_run(tmp_path: Path) -> None:
    compile_layers(_policy())
    assert Path(cache_dir()) == tmp_path / "cache/kernels/inductor"


def test_on_a_cpu_layers_are_compiled_where_it_is_asked_for_alone() -> None:
    policy = _policy()
    compiled = [prepare_compilation(policy, asked, WORLD, "padded", backend="eager") for asked in (True, None, False)]
    assert compiled == [True, False, False]
    assert counters["stats"]["unique_graphs"] == 1
    _computed(policy, _batch([9, 12], "padded"))
    assert counters["stats"]["unique_graphs"] == 1, "layers that are compiled no more were compiled once more"


def test_what_cannot_be_compiled_is_refused_with_its_reason_or_the_words_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match=r"compile is true, .*packed rows on a CPU.*; set it to false or null"):
        prepare_compilation(_policy(), True, WORLD, "packed")

    def wait(own: Any, layer: Qwen2MLP, hidden: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        output: Tensor = own(layer, hidden)
        return output

    _replace_mlp(monkeypatch, wait)
    policy = _policy()
    with pytest.raises(UserError, match=r"torch says `.*graph_break"):
        prepare_compilation(policy, True, WORLD, "padded")
    _computed(policy, _batch([9, 12], "padded"))  # by layers that are not compiled


def _replace_mlp(monkeypatch: pytest.MonkeyPatch, forward: Callable[[Any, Qwen2MLP, Tensor], Tensor]) -> None:
    own = Qwen2MLP.forward
    monkeypatch.setattr(Qwen2MLP, "forward", lambda layer, hidden: forward(own, layer, hidden))


def test_without_a_folder_for_kernels_layers_are_compiled_on_no_gpu_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user may write to it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    policy, gpu = _policy(), World(rank=0, size=1, device=torch.device("cuda"))  # whose layers are compiled by default
    assert not prepare_compilation(policy, None, gpu, "padded")
    said = " ".join(capsys.readouterr().err.split())
    assert "layers of this qwen2 model are not compiled (runtime.training.compile: null): there is no folder" in said
    assert str(cache) in said
    with pytest.raises(UserError, match=r"compile is true, .*there is no folder for compiled kernels \(.*cache"):
        prepare_compilation(policy, True, gpu, "padded")
    _computed(policy, _batch([9, 12], "padded"))  # by layers that are not compiled


@pytest.mark.nightly
def test_layers_with_the_right_logprobs_and_another_gradient_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_gradient(own: Any, layer: Qwen2MLP, hidden: Tensor) -> Tensor:
        output: Tensor = own(layer, hidden.detach() if torch.compiler.is_compiling() else hidden)
        return output

    policy = _policy()
    _replace_mlp(monkeypatch, lose_gradient)
    with pytest.raises(UserError, match=r"the gradient by .* of its norm"):
        prepare_compilation(policy, True, WORLD, "padded", backend="aot_eager")
