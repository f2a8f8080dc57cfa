"""SGLang on a GPU, with kernels of its own for adapters: it says what it serves, and samples as the merged weights do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.engine.batches import batch
from tests.engine.served_adapters import FORM, adapter_of
from tests.gpu.conftest import CACHE_TOKENS, ONE, as_trained

from dagrpo.checkpoints.lora_layers import matrices_of
from dagrpo.checkpoints.tensors import CastTensors, JointTensors, Tensors
from dagrpo.engine import sglang
from dagrpo.engine.interface import Adapter
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.engine.sglang.digests import counterparts, differing
from dagrpo.trainer.checks.logprob_agreement import LARGEST_MEAN_DIFFERENCE
from dagrpo.trainer.checks.weight_sync import COMPARED, WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import token_logprobs
from dagrpo.utils.distributed import single_process

pytestmark = [pytest.mark.gpu, ONE]


def drawn(weights: Tensors, seed: int) -> Tensors:
    """An adapter for these weights, in bfloat16."""
    layers = {name.removesuffix(".weight"): spec.shape for name, spec in weights.specs.items() if len(spec.shape) == 2}
    return CastTensors(adapter_of(layers, seed), torch.bfloat16)


@pytest.fixture(scope="module")
def serving(initial: Path, weights: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """A server in bfloat16 that holds `weights`, and serves an adapter beside them."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    params = sglang.Config(max_total_tokens=CACHE_TOKENS, start_timeout=400, request_timeout=200)
    adapter = Adapter(form=FORM, tensors=drawn(weights, 1))
    with open_sglang(
        initial, params, log, dtype="bfloat16", deterministic=False, weights=weights, adapter=adapter
    ) as pool:
        yield pool


def test_its_digests_are_those_of_the_adapter_that_was_handed_over_last(serving: ServerPool, weights: Tensors) -> None:
    changed = drawn(weights, 2)
    serving.load(changed, "changed")
    ((held,),) = [server.ranks for server in serving.digests()]
    both = JointTensors(weights, changed)
    known = counterparts([*held], [*both.specs])
    assert known.keys() == held.keys()
    assert differing([*known], [held], known, both) == []
    assert WeightSyncCheck(Gates(), 7).check(serving, changed, 1, updated=True)[COMPARED] >= 1


def test_it_samples_as_the_merged_weights_do(serving: ServerPool, initial: Path, weights: Tensors) -> None:
    adapter = drawn(weights, 3)
    serving.load(adapter, "third")
    requests = batch(prompts=16, samples=4, max_new_tokens=64)
    completions = serving.generate(requests, lockstep=True)
    theirs = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    policy = load_policy(initial, single_process(), dtype=torch.bfloat16)
    padded = as_trained(requests, completions)
    with torch.no_grad():
        without = token_logprobs(policy, padded, 1.0).logprobs.cpu()
        policy.model.load_state_dict(merged(weights, adapter), strict=False)
        ours = token_logprobs(policy, padded, 1.0).logprobs.cpu()
    ours_differ, without_differ = (float((each - theirs).abs().mean()) for each in (ours, without))
    assert ours_differ < LARGEST_MEAN_DIFFERENCE["bfloat16"] / 5
    assert without_differ > 5 * ours_differ


def merged(weights: Tensors, adapter: Tensors) -> dict[str, torch.Tensor]:
    """The weights that the adapter changes, in float32, changed by it."""
    changed = {}
    for name in weights.specs:
        down, up = matrices_of(name.removesuffix(".weight"))
        if down in adapter.specs:
            update = adapter.read(up).float() @ adapter.read(down).float()
            changed[name] = weights.read(name).float() + FORM.alpha / FORM.rank * update
    return changed
