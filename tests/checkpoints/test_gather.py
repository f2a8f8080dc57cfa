"""A model's weights one by one, in the form of its checkpoint. (With several processes: tests/trainer/test_several_processes.py.)"""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dagrpo.checkpoints import gather
from dagrpo.checkpoints.gather import GatheredWeights, is_in_checkpoint_form
from dagrpo.checkpoints.modules import own_state, state_of
from dagrpo.checkpoints.tensors import StateTensors, Tensors, first_difference
from dagrpo.utils.distributed import World, single_process

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def _dense() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, intermediate_size=32, tie_word_embeddings=True))


def _experts() -> PreTrainedModel:
    more = {"head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **more))


@pytest.mark.parametrize("model", [_dense(), _experts()], ids=["dense", "experts"])
def test_the_weights_are_those_that_would_be_saved(model: PreTrainedModel) -> None:
    expected = StateTensors({name: tensor.bfloat16() for name, tensor in state_of(model).items()})
    with GatheredWeights(model, torch.bfloat16, single_process()).reading() as tensors:
        assert first_difference(expected, tensors) is None
    assert is_in_checkpoint_form(model) is (model.config.model_type == "qwen2")


@pytest.mark.parametrize("model", [_dense(), _experts()], ids=["dense", "experts"])
def test_they_are_read_as_they_are_at_that_moment(model: PreTrainedModel) -> None:
    weights = GatheredWeights(model, torch.float32, single_process())
    for value in (1.0, 2.0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        with weights.reading() as tensors:
            _assert_all(tensors, value)


def _assert_all(tensors: Tensors, value: float) -> None:
    assert tensors.specs
    assert all(bool((tensors.read(name) == value).all()) for name in tensors.specs)


def _joining(model: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two norms of the model as one tensor of its checkpoint."""
    parts = [name for name in sorted(state) if name.endswith("layernorm.weight") and ".0." in name]
    rest = {name: tensor for name, tensor in state.items() if name not in parts}
    return rest | ({"norms": torch.cat([state[name] for name in parts])} if len(parts) == 2 else {})


def test_what_cannot_be_converted_one_by_one_is_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "in_checkpoint_form", _joining)
    model = _dense()
    expected = StateTensors(_joining(model, own_state(model)))
    with GatheredWeights(model, torch.float32, single_process()).reading() as tensors:
        assert first_difference(expected, tensors) is None


def test_what_cannot_be_gathered_one_by_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "in_checkpoint_form", _joining)
    with pytest.raises(ValueError, match=r"Qwen2ForCausalLM joins tensors of its checkpoint: set"):
        GatheredWeights(_dense(), torch.float32, World(rank=0, size=2, device=torch.device("cpu")))
