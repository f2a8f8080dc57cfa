"""Products with packed weights: the same numbers, and never those of weights that were replaced."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dagrpo_sglang_cpu import packed
from dagrpo_sglang_cpu.packed import HARMLESS, PackedWeights
from torch import Tensor
from torch.nn.functional import linear


class FlushCacheReqInput:
    """Named as SGLang's."""


class UpdateWeightsByMagicReqInput:
    """A road that nobody has heard of."""


def plain(method: object, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(x, layer.weight, bias)


def refused(*arguments: object, **more: object) -> Tensor:
    raise AssertionError("there is a way of our own")


def layer_of(dtype: torch.dtype = torch.float32, rows: int = 48, width: int = 32) -> SimpleNamespace:
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
    return SimpleNamespace(weight=torch.nn.Parameter(weight, requires_grad=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 16, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_torch_to_rounding(dtype: torch.dtype, rows: int, biased: bool) -> None:
    weights, layer = PackedWeights(), layer_of(dtype)
    if dtype not in weights._dtypes:
        pytest.skip("oneDNN has none on this processor")
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    bias = torch.ones(48, dtype=dtype) if biased else None
    product = weights.apply(refused, None, layer, x, bias)
    assert product.dtype == dtype
    torch.testing.assert_close(product, linear(x, layer.weight, bias))


@pytest.mark.parametrize("handled", ["whole", "with an error"])
def test_after_any_request_but_the_harmless_ones_products_are_of_the_weights_as_they_are(handled: str) -> None:
    """The weight is written in place, as SGLang's loaders do it; the handler computes with the old one first."""
    weights, layer, x = PackedWeights(), layer_of(), torch.ones(2, 32)

    def handler(scheduler: object, requests: object) -> None:
        weights.apply(refused, None, layer, x)
        layer.weight.data.copy_(torch.full((48, 32), 2.0))
        if handled == "with an error":
            raise RuntimeError("at the end of an update")

    before = weights.apply(refused, None, layer, x)
    with pytest.raises(RuntimeError) if handled == "with an error" else nullcontext():
        weights.drop_around_requests(handler, None, [FlushCacheReqInput(), UpdateWeightsByMagicReqInput()])
    after = weights.apply(refused, None, layer, x)
    assert not torch.equal(before, after)
    assert torch.equal(after, torch.full((2, 48), 64.0))


def test_harmless_requests_keep_the_copies_and_a_weight_is_packed_once() -> None:
    weights, layer, x = PackedWeights(), layer_of(), torch.ones(2, 32)
    weights.apply(refused, None, layer, x)
    (copy,) = weights._copies.values()
    handled: list[object] = []
    weights.drop_around_requests(lambda scheduler, requests: handled.append(requests), None, [FlushCacheReqInput()])
    weights.drop_around_requests(lambda scheduler, requests: handled.append(requests), None, [])
    weights.apply(refused, None, layer, x)
    assert len(handled) == 2
    assert [each is copy for each in weights._copies.values()] == [True]


def test_the_harmless_requests_are_known_to_sglang_and_none_of_them_is_about_weights() -> None:
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "srt/managers/scheduler.py").read_text()
    handlers = dict(re.findall(r"\(\s*(\w+),\s*(self\.[\w.]+),?\s*\)", source))
    assert {name: handlers[name] for name in HARMLESS} == {
        "TokenizedGenerateReqInput": "self.handle_generate_request",
        "BatchTokenizedGenerateReqInput": "self.handle_batch_generate_request",
        "FlushCacheReqInput": "self.flush_wrapper.handle",
        "AbortReq": "self.abort_request",
    }
    calls = source.count("self._request_dispatcher(")
    body = source.partition("def process_input_requests")[2].partition("\n    def ")[0]
    assert body.count("self._request_dispatcher(") == calls, "requests are handled elsewhere, too"


def test_a_weight_that_is_replaced_by_another_tensor_is_packed_anew() -> None:
    weights, layer, x = PackedWeights(), layer_of(), torch.ones(2, 32)
    weights.apply(refused, None, layer, x)
    layer.weight = torch.nn.Parameter(torch.full((48, 32), 2.0), requires_grad=False)
    assert torch.equal(weights.apply(refused, None, layer, x), torch.full((2, 48), 64.0))


def test_models_that_are_too_large_together_are_multiplied_as_sglang_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 2 * 48 * 32 * 4)
    weights, x = PackedWeights(), torch.ones(2, 32)
    layer = torch.nn.Linear(32, 48).requires_grad_(False)
    model = torch.nn.Sequential(layer, torch.nn.LayerNorm(32), torch.nn.Linear(32, 48, bias=False))
    weights.count(None, SimpleNamespace(model=model))
    weights.apply(refused, None, layer, x)
    weights.count(None, SimpleNamespace(model=torch.nn.Linear(1, 1)))
    assert torch.equal(weights.apply(plain, None, layer, x), linear(x, layer.weight))


def test_types_that_onednn_has_no_products_of_are_left_to_sglang() -> None:
    weights, layer = PackedWeights(), layer_of(torch.float16)
    asked = []

    def original(*arguments: object) -> Tensor:
        asked.append(arguments)
        return torch.zeros(0)

    weights.apply(original, None, layer, torch.ones(2, 32, dtype=torch.float16))
    weights.apply(original, None, layer_of(), torch.ones(0, 32))
    assert len(asked) == 2


def head_processor(fp32: bool = False, **kinds: object) -> SimpleNamespace:
    return SimpleNamespace(use_fp32_lm_head=fp32, rl_on_policy_target=None, **kinds)


@pytest.fixture
def any_head_is_plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda answer: monkeypatch.setattr(packed, "is_plain_head", lambda processor, head: answer)


def test_a_head_in_float32_has_a_copy_of_its_own_type(any_head_is_plain: Callable[[bool], None]) -> None:
    any_head_is_plain(True)
    weights, head, hidden = PackedWeights(), layer_of(torch.bfloat16), torch.ones(3, 32, dtype=torch.bfloat16)
    logits = weights.compute_head(refused, head_processor(fp32=True), hidden, head)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ head.weight.float().T)


def test_a_head_of_another_kind_is_left_to_sglang(any_head_is_plain: Callable[[bool], None]) -> None:
    any_head_is_plain(False)
    theirs = torch.zeros(1)
    assert PackedWeights().compute_head(lambda *a: theirs, head_processor(), torch.ones(1, 32), layer_of()) is theirs
