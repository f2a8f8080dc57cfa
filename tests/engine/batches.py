"""Requests for a server, and what transformers says of its answers."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from dagrpo.core.types import Completion, SamplingRequest


def batch(
    prompts: int = 32, samples: int = 8, max_new_tokens: int = 16, temperature: float = 1.0
) -> list[SamplingRequest]:
    rng = random.Random(prompts)
    return [
        SamplingRequest(
            input_ids=prompt, seed=8 * index + sample, temperature=temperature, top_p=1.0, top_k=-1,
            max_new_tokens=max_new_tokens,
        )
        for index, prompt in enumerate(
            [tuple(rng.randrange(2, 100) for _ in range(rng.randrange(8, 30))) for _ in range(prompts)]
        )
        for sample in range(samples)
    ]  # fmt: skip


def trainer_logprobs(
    model: Path, requests: Sequence[SamplingRequest], completions: Sequence[Completion]
) -> list[float]:
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    logprobs: list[float] = []
    for request, completion in zip(requests, completions, strict=True):
        ids = torch.tensor([[*request.input_ids, *completion.token_ids]])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(request.input_ids) - 1 : -1]
        chosen = torch.tensor(completion.token_ids)[:, None]
        scaled = torch.log_softmax(logits / request.temperature, dim=-1)
        logprobs.extend(scaled.gather(1, chosen)[:, 0].tolist())
    return logprobs
