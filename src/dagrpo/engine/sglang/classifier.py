"""Sequence classifiers behind SGLang servers: tokens in, one logit out."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file
from typing_extensions import TypedDict

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.weight_map import INDEX
from dagrpo.core.untrusted_json import read_json
from dagrpo.engine.background import BackgroundLoop, all_of
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import Endpoint, HttpServer
from dagrpo.engine.servers import raise_open_files, start_all
from dagrpo.engine.sglang import KEY_VARIABLE, Config
from dagrpo.engine.sglang.answers import refused
from dagrpo.engine.sglang.client import COUNTS_PAGE, EMPTY_CACHE
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.utils.files import read_object, write_json

AT_ONCE = 64  # conversations of an HTTP request
MOST_BYTES = 1 << 14  # of the answer for one conversation
HEAD, BIAS, BIAS_FILE = "score.weight", "score.bias", "score-bias.safetensors"


class _Reply(TypedDict):
    embedding: list[float]


_REPLIES = TypeAdapter(list[_Reply])


class SGLangClassifier:
    """Classifier behind one or more servers with the same weights, each of which scores a part of every batch.

    leaves: whether it is in GPU memory only while it scores.
    """

    def __init__(self, servers: Sequence[HttpServer], loop: BackgroundLoop, *, leaves: bool = False) -> None:
        self._servers = servers
        self._loop = loop
        self._leaves = leaves
        if leaves:
            self._memory("release")

    def scores(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """Return the logit of each conversation. Raises ServerError if a server fails, or answers in another form."""
        if not self._leaves:
            return self._computed(conversations)
        self._memory("resume")
        scores = self._computed(conversations)
        self._memory("release")
        return scores

    def _memory(self, action: Literal["release", "resume"]) -> None:
        """Release the GPU memory of all servers, or take it again with the weights, which they keep in host memory."""
        if action == "release":  # a server with work in hand would exit (SGLang 0.5.23); this waits until it is idle
            self._loop.run(all_of(server.post(EMPTY_CACHE, {}) for server in self._servers))
        self._loop.run(all_of(server.post(f"/{action}_memory_occupation", {}) for server in self._servers))

    def _computed(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        parts = [conversations[start : start + AT_ONCE] for start in range(0, len(conversations), AT_ONCE)]
        works = [self._scores(self._servers[number % len(self._servers)], part) for number, part in enumerate(parts)]
        return [score for part in self._loop.run(all_of(works)) for score in part]

    async def _scores(self, server: HttpServer, conversations: Sequence[Sequence[int]]) -> list[float]:
        answer = await server.post("/classify", {"input_ids": [list(tokens) for tokens in conversations]})
        if len(answer) > len(conversations) * MOST_BYTES:
            raise refused(server.address, "/classify", f"{len(answer):,} bytes", answer)
        try:
            replies = _REPLIES.validate_python(read_json(answer), strict=True)
        except ValueError:  # ValidationError is one
            raise refused(server.address, "/classify", "scores are missing", answer) from None
        scores = [reply["embedding"] for reply in replies]
        if len(scores) != len(conversations) or not all(len(each) == 1 and math.isfinite(each[0]) for each in scores):
            raise refused(server.address, "/classify", "it is not one finite number for each conversation", answer)
        return [each[0] for each in scores]


@contextmanager
def open_classifier(
    model: Path, config: Config, log: Path, *, dtype: str, reserved: int = 0
) -> Iterator[SGLangClassifier]:
    """Open a classifier of a folder in the Hugging Face layout, until the context ends.

    reserved: the number of GPUs, the last ones, that other servers have to themselves.
    Servers that `config` names have to serve that model already (--is-embedding). Raises ServerError if it has not one label.
    """
    require_one_label(model)
    raise_open_files()
    with ExitStack() as stack:
        loop = stack.enter_context(BackgroundLoop())
        if config.servers:
            key = os.environ.get(KEY_VARIABLE)
            endpoints = [Endpoint(address=address, api_key=key) for address in config.servers]
        else:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="classifier-")))
            served = with_head_bias(model, scratch)
            servers = start_all(
                stack,
                config,
                log,
                lambda log, gpus: SGLangServer(served, config, log, dtype=dtype, only_gpus=gpus, classifies=True),
                reserved=reserved,
            )
            endpoints = [server.endpoint for server in servers]
        https = [HttpServer(endpoint, config.request_timeout, COUNTS_PAGE) for endpoint in endpoints]
        stack.callback(lambda: loop.run(all_of(http.close() for http in https)))
        yield SGLangClassifier(https, loop, leaves=config.release_memory)


def with_head_bias(model: Path, folder: Path) -> Path:
    """Return the checkpoint; for SGLang 0.5.23's heads with a bias, `folder` with links to its files and a bias of 0.

    Its heads of Qwen models have one (qwen2_classification.py, qwen3_classification.py), which stays random if the checkpoint has none,
    as those of transformers.
    """
    tensors = HuggingFaceTensors(model)
    if not read_object(model / "config.json")["architectures"][0].startswith("Qwen") or BIAS in tensors.specs:
        return model
    for path in model.iterdir():
        if path.name not in (INDEX, BIAS_FILE):
            (folder / path.name).symlink_to(path.resolve())
    save_file({BIAS: torch.zeros(1, dtype=tensors.specs[HEAD].dtype)}, folder / BIAS_FILE)
    if (model / INDEX).is_file():
        index = read_object(model / INDEX)
        write_json(folder / INDEX, index | {"weight_map": index["weight_map"] | {BIAS: BIAS_FILE}})
    return folder


def require_one_label(model: Path) -> None:
    """Raise ServerError unless the folder has a sequence classifier with one label."""
    config = read_object(model / "config.json")
    architectures = config.get("architectures") or [""]
    labels = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    is_classifier = str(architectures[0]).endswith("ForSequenceClassification")
    if not is_classifier or labels != 1:
        what = (
            f"{architectures[0]} of {labels} labels"
            if is_classifier
            else architectures[0] or "model that names no architecture"
        )
        raise ServerError(
            f"{model} is a {what}, and a reward model is a sequence classifier of one: give "
            "reward.components.reward_model.folder another checkpoint."
        )
