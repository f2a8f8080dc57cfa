"""An engine of long made-up answers, and a policy whose logprobs they have.

The logprob of a token is a table's entry for it and its position, plus a millionth of the sum of the weights: neither side runs a
model, and each step changes the weights. Every other answer is right. The engine's log has a line for each weight sync and for the
first request after it, with the memory of the process and the bytes that it has read.
"""

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.trainer.runs import ScriptedEngine

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.trainer.model.policy import Policy

ENTRIES, SHIFT = 1 << 16, 1e-6
LOGPROBS = -np.random.default_rng(0).exponential(0.3, ENTRIES).astype(np.float32)
NOISE = np.float32(1e-4)  # of the engine against the trainer
PRINTABLE = range(32, 127)
LEAST = 64  # tokens of a request that is for a whole answer


def entries(tokens: Any, positions: Any) -> Any:
    """Return the places in LOGPROBS of tokens, [tokens], that positions of a sequence, [tokens], predict."""
    return (tokens * 7919 + positions * 104729) % ENTRIES


class LongAnswers(ScriptedEngine):
    """Engine of answers as long as a request allows, and up to 64 tokens shorter."""

    def __init__(self, model: Path, log: Path) -> None:
        super().__init__(model, [])
        tokenizer = load_tokenizer(model)
        self._ids = np.array(tokenizer.convert_tokens_to_ids(["Ġ", *map(chr, PRINTABLE[1:])]))
        self._characters: Mapping[int, str] = dict(zip(self._ids.tolist(), map(chr, PRINTABLE), strict=True))
        self._end, self._shift = int(tokenizer.eos_token_id), 0.0
        self._log, self._is_first = log, True

    def load(self, weights: Any, version: str) -> None:
        """Take the weights."""
        self.asked.clear()
        super().load(weights, version)
        self._shift = SHIFT * sum(float(weight.detach().sum()) for weight in self._model.parameters())
        self._is_first = True
        self._note("load")

    def generate(
        self, requests: Sequence[SamplingRequest], *, lockstep: bool, places: Any = None, first_wave: bool = True
    ) -> list[Completion]:
        """Return the answers."""
        return [self._completion(request) for request in requests]

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return an answer."""
        if self._is_first:
            self._is_first = False
            self._note("sample")
        await asyncio.sleep(0)
        return self._completion(request)

    def _completion(self, request: SamplingRequest) -> Completion:
        rng, length = np.random.default_rng(request.seed), request.max_new_tokens
        is_whole = length >= LEAST
        length -= int(rng.integers(0, LEAST)) if is_whole and length > LEAST else 0
        tokens = self._ids[rng.integers(0, len(self._ids), length)]
        if is_whole:
            tail = [*self._ids[np.frombuffer(self._answer(request, rng).encode(), np.uint8) - PRINTABLE[0]], self._end]
            tokens[-len(tail) :] = tail
        positions = np.arange(length) + len(request.input_ids) - 1
        noise = NOISE * rng.standard_normal(length, np.float32)
        logprobs = LOGPROBS[entries(tokens, positions)] + np.float32(self._shift) + noise
        return Completion(
            token_ids=tuple(tokens.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish_reason="stop" if is_whole else "length",
            weight_version=self.version,
        )

    def _answer(self, request: SamplingRequest, rng: np.random.Generator) -> str:
        prompt = "".join(self._characters.get(token, "") for token in request.input_ids)
        return f" #### {sum(map(int, re.findall(r'[0-9]+', prompt))) + int(rng.integers(0, 2))}"

    def _note(self, what: str) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        read = Path("/proc/self/io").read_text().split()[1]
        resident, peak = (status[name].split()[0] for name in ("VmRSS", "VmHWM"))
        with self._log.open("a") as log:
            print(os.getpid(), what, self.version, f"{time.time():.3f}", resident, peak, read, file=log)


def formula(policy: Policy, batch: Any, temperature: float, *_: Any) -> Any:
    """Return (logprobs, entropy, collision) in the place of `Policy.forward`, all [tokens]."""
    places = batch.position_ids[0] if hasattr(batch, "position_ids") else None
    positions = batch.columns if places is None else places[batch.columns]
    shift = SHIFT * sum(weight.sum() for weight in policy.model.parameters())
    logprobs = torch.from_numpy(LOGPROBS)[entries(batch.targets, positions)] + shift
    return logprobs, torch.ones_like(logprobs).detach(), torch.zeros_like(logprobs).detach()
