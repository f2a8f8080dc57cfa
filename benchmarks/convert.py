"""Seconds and memory of a conversion to Megatron's format and back, beside cp and beside transformers, in one run.

    OMP_NUM_THREADS=1 python benchmarks/convert.py /tmp/convert --repeats 3
    OMP_NUM_THREADS=1 python benchmarks/convert.py /tmp/convert --repeats 3 --shape experts

Makes a random bfloat16 model in that folder, which needs room for it three times: in the shape of Qwen2-1.5B (3.1 GB), or
a mixture of 9,216 experts so small (60 MB) that only the cost of a tensor counts. Each step is a process of its own;
imports are not counted, checking, writing, reading back and fsync are. Memory is the peak of RssAnon, sampled every 5 ms:
pages of mapped files, which the system can drop, are not in it. The peer of a ratio is the cp with fsync of the same
bytes that ran just before.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo.checkpoints.store import finish
from dagrpo.checkpoints.tensors import TensorSpec
from dagrpo_megatron.config import load_config
from dagrpo_megatron.layout import layout_of

SHARD_BYTES = 1_000_000_000
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "experts": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 1024,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 16,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 72,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}


class RandomTensors:
    """Weights of a model with the config.json of a folder, made when they are read."""

    def __init__(self, folder: Path) -> None:
        pieces = layout_of(load_config(folder)).pieces
        shapes = {name: shape for piece in pieces for name, shape in zip(piece.names, piece.shapes, strict=True)}
        self.specs = {name: TensorSpec(dtype=torch.bfloat16, shape=shape) for name, shape in shapes.items()}

    def read(self, name: str) -> torch.Tensor:
        return torch.randn(self.specs[name].shape, dtype=torch.bfloat16) * 0.02


def make_source(folder: Path, config: dict[str, Any]) -> None:
    """A model folder with its manifest, if it is not there."""
    if (folder / "manifest.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    finish(folder, "huggingface", RandomTensors(folder), SHARD_BYTES)


def _copy(source: Path, destination: Path) -> None:
    """What cp does, in the kernel, and fsync."""
    shutil.copytree(source, destination)
    for path in destination.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def _transformers(source: Path, destination: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.save_pretrained(destination, max_shard_size=SHARD_BYTES)
    for path in destination.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


STEPS: dict[str, Callable[[Path, Path], object]] = {
    "cp and fsync": _copy,
    "to Megatron": lambda source, destination: write_as("megatron", open_checkpoint(source), destination, SHARD_BYTES),
    "from Megatron": lambda source, destination: write_as(
        "huggingface", open_checkpoint(source), destination, SHARD_BYTES
    ),
    "transformers from_pretrained and save_pretrained": _transformers,
}


def _anonymous_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


class AnonymousPeak:
    """The most anonymous memory of this process, in MiB, while the block runs."""

    def __enter__(self) -> Self:
        self.megabytes = _anonymous_megabytes()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._finished.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._finished.wait(0.005):
            self.megabytes = max(self.megabytes, _anonymous_megabytes())


def run_step(name: str, source: Path, destination: Path) -> dict[str, float]:
    """Run a step in this process: seconds, processor seconds of all threads, and peak MiB of anonymous memory."""
    with AnonymousPeak() as peak:
        start, start_processor = time.perf_counter(), time.process_time()
        STEPS[name](source, destination)
        seconds, processor = time.perf_counter() - start, time.process_time() - start_processor
    return {"seconds": seconds, "processor": processor, "megabytes": peak.megabytes}


def _measured(name: str, source: Path, destination: Path) -> dict[str, float]:
    shutil.rmtree(destination, ignore_errors=True)
    os.sync()
    command = [sys.executable, __file__, str(source), "--step", name, "--destination", str(destination)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, repeats: int) -> None:
    source, there, other = folder / "source", folder / "megatron", folder / "other"
    rounds: dict[str, list[tuple[float, float, float, float]]] = {}
    for _ in range(repeats):
        for name in list(STEPS)[1:]:
            copied = _measured("cp and fsync", source, other)
            shutil.rmtree(other)
            target = there if name == "to Megatron" else other
            figures = _measured(name, there if name == "from Megatron" else source, target)
            row = (figures["seconds"], copied["seconds"], figures["processor"], figures["megabytes"])
            rounds.setdefault(name, []).append(row)
        shutil.rmtree(other)
    print("| step | seconds | cp and fsync | ratio | processor seconds | peak anonymous MiB |")
    print("|---|---|---|---|---|---|")
    for name, found in rounds.items():
        seconds, peer, processor = (statistics.median(figures[n] for figures in found) for n in (0, 1, 2))
        ratio = statistics.median(figures[0] / figures[1] for figures in found)
        memory = max(figures[3] for figures in found)
        print(f"| {name} | {seconds:.1f} | {peer:.1f} | {ratio:.2f} | {processor:.1f} | {memory:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=CONFIGS, default="dense")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", choices=STEPS, help="used by the script itself")
    parser.add_argument("--destination", type=Path)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(run_step(options.step, options.folder, options.destination)))
        return
    folder = options.folder / options.shape
    make_source(folder / "source", CONFIGS[options.shape])
    measure(folder, options.repeats)


if __name__ == "__main__":
    main()
