import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from tests import waiting
from tests.engine.pools import pool_over
from tokenizers import Tokenizer, models
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer

VOCABULARY = 100
STOP = 1


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads of torch beside a busy server wait for each other most of the time."""
    torch.set_num_threads(1)


def make_tiny_model(folder: Path) -> Path:
    """A Qwen2 of 0.8M random parameters, large enough to prefer some tokens over others, and a tokenizer."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=STOP,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    words = {f"t{index}": index for index in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine() -> sglang.Config:
    return sglang.Config(start_timeout=240, request_timeout=120)


@pytest.fixture(scope="session")
def server(tiny_model: Path, engine: sglang.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """One server for all tests that leave it as they found it."""
    with SGLangServer(tiny_model, engine, tmp_path_factory.mktemp("logs") / "server.log") as server:
        yield server


@pytest.fixture
def pool(server: SGLangServer, tiny_model: Path) -> Iterator[ServerPool]:
    """The engine of that server; it holds the tiny model's weights at first."""
    with pool_over([server.endpoint], tiny_model) as pool:
        pool.load(HuggingFaceTensors(tiny_model), "first")
        yield pool


@pytest.fixture
def living_in() -> Callable[[int], list[str]]:
    """Names of the processes of a group that are not dead."""

    def names(group: int) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.name())
        return found

    return names


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    return waiting.wait_until
