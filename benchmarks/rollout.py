"""Tokens per second of a rollout batch: SGLang in lockstep against transformers' own batched generate, in one run.

    OMP_NUM_THREADS=1 python benchmarks/rollout.py models/tiny_qwen2 --prompts 32 --samples 8 --tokens 16

Both draw every token from the whole softmax at temperature 1. SGLang stops a completion at its end and transformers is made
to go on, so SGLang's time is scaled to the full number of tokens. Starting the server is printed, not counted.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from dagrpo.core.types import SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.sampling import sampling_seed

PROMPT_TOKENS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    prompts = _prompts(options.prompts)
    ours = _sglang(options.model, prompts, options.samples, options.tokens, options.repeats)
    theirs = _transformers(options.model, prompts, options.samples, options.tokens, options.repeats)
    generated = options.prompts * options.samples * options.tokens
    print(f"SGLang, lockstep        {generated / ours:8.0f} tokens/s")
    print(f"transformers, generate  {generated / theirs:8.0f} tokens/s")
    print(f"ratio                   {theirs / ours:8.2f}")


def _prompts(count: int) -> torch.Tensor:
    return torch.randint(20, 200, (count, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()  # once to warm up
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _sglang(model: Path, prompts: torch.Tensor, samples: int, tokens: int, repeats: int) -> float:
    requests = [
        SamplingRequest(
            input_ids=tuple(prompt),
            seed=sampling_seed(0, number, sample),
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_new_tokens=tokens,
        )
        for number, prompt in enumerate(prompts.tolist())
        for sample in range(samples)
    ]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with open_engine(model, sglang.Config(), log, dtype="float32", deterministic=True) as engine:
            print(f"SGLang ready after      {time.perf_counter() - start:8.1f} s")
            seconds = _median_seconds(lambda: engine.generate(requests, lockstep=True), repeats)
            return seconds * _share_generated(engine, requests, tokens)


def _share_generated(engine: RolloutEngine, requests: list[SamplingRequest], tokens: int) -> float:
    """A completion may end early: scale the time to what the whole length would have cost."""
    generated = sum(len(completion.token_ids) for completion in engine.generate(requests, lockstep=True))
    return len(requests) * tokens / generated


def _transformers(folder: Path, prompts: torch.Tensor, samples: int, tokens: int, repeats: int) -> float:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return _median_seconds(
        lambda: model.generate(
            prompts.repeat_interleave(samples, dim=0),
            attention_mask=torch.ones(len(prompts) * samples, PROMPT_TOKENS, dtype=torch.int64),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        ),
        repeats,
    )


if __name__ == "__main__":
    main()
