"""Supervised fine-tuning on the train split's own answers: the stage before GRPO.

With no steps the model passes through unchanged, so that the DAG has one shape for every experiment.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from dagrpo.checkpoints import hf, manifest
from dagrpo.console import progress
from dagrpo.files import atomic_folder
from dagrpo.params.sft import Sft
from dagrpo.trainer.packing import Batch, pad, prompt_indices
from dagrpo.trainer.optimizer import adamw, apply_gradients, warmed_up
from dagrpo.trainer.policy import Policy, token_logprobs
from dagrpo.trainer.prompts import read_examples, supervised_pairs

Report = Callable[[int, Mapping[str, float]], None]


def fine_tune(source: Path, train_split: Path, destination: Path, params: Sft, seed: int, report: Report) -> None:
    """Fine-tune the Hugging Face checkpoint `source` into `destination`."""
    manifest.verify(source)
    if params.steps == 0:
        pass_through(source, destination)
        return
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    pairs = supervised_pairs(read_examples(train_split), tokenizer, train_split)
    fit(model, pairs, tokenizer.eos_token_id, params, seed, report)
    hf.save_model(model, source, destination)


def pass_through(source: Path, destination: Path) -> None:
    """The same checkpoint under another name: hard links where the disk allows, else copies."""
    with atomic_folder(destination) as folder:
        for name in sorted(p.name for p in source.iterdir() if p.is_file() and p.name != "provenance.json"):
            try:
                os.link(source / name, folder / name)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(source / name, folder / name)


def fit(
    model: PreTrainedModel,
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]],
    pad_token_id: int,
    params: Sft,
    seed: int,
    report: Report,
) -> None:
    """Minimise the mean negative logprob of the target tokens."""
    policy = Policy(model)
    optimizer = adamw(policy.parameters(), params.learning_rate, params.weight_decay)
    with progress(f"sft (seed {seed})", params.steps) as bar:
        for step in range(params.steps):
            drawn = [pairs[index] for index in prompt_indices(seed, step, params.batch_size, len(pairs))]
            batch = pad([prompt for prompt, _ in drawn], [target for _, target in drawn], pad_token_id)
            loss = _loss(policy, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            learning_rate = warmed_up(params.learning_rate, step, params.learning_rate_warmup_steps)
            norm = apply_gradients(optimizer, learning_rate, params.max_grad_norm)
            report(step + 1, {"loss": float(loss.detach()), "grad_norm": norm, "learning_rate": learning_rate})
            bar.advance(1, f"loss {float(loss.detach()):.3f}")


def _loss(policy: Policy, batch: Batch) -> torch.Tensor:
    return -token_logprobs(policy, batch, temperature=1.0).logprobs.mean()
