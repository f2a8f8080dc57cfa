"""Seconds and memory of a conversion to Megatron's format and back, beside cp and beside transformers, in one run.

    OMP_NUM_THREADS=1 python benchmarks/convert.py /tmp/convert --repeats 3

Makes a random bfloat16 model in the shape of Qwen2-1.5B (3.1 GB) in that folder, which needs room for it three times. Each
step is a process of its own; imports are not counted, checking, writing, reading back and fsync are. Memory is the peak of
RssAnon, sampled every 5 ms: pages of mapped files, which the system can drop, are not in it. The peer of a ratio is
the cp with fsync of the same bytes that ran just before.
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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from dagrpo.checkpoints import hf
from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.manifest import write_manifest
from dagrpo.checkpoints.source import open_source
from dagrpo.checkpoints.tensors import TensorSpec

SHARD_BYTES = 1_000_000_000
CONFIG = {
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
}


class RandomTensors:
    """Weights of the shape above, made when they are read."""

    def __init__(self, layers: int) -> None:
        self.specs = {name: TensorSpec(dtype=torch.bfloat16, shape=shape) for name, shape in _shapes(layers)}

    def read(self, name: str) -> torch.Tensor:
        return torch.randn(self.specs[name].shape, dtype=torch.bfloat16) * 0.02


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn, key = 1536, 8960, 256
    yield "model.embed_tokens.weight", (151_936, hidden)
    yield "model.norm.weight", (hidden,)
    for number in range(layers):
        layer = f"model.layers.{number}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", (hidden,)
        for part, rows in (("q", hidden), ("k", key), ("v", key)):
            yield f"{layer}self_attn.{part}_proj.weight", (rows, hidden)
            yield f"{layer}self_attn.{part}_proj.bias", (rows,)
        yield f"{layer}self_attn.o_proj.weight", (hidden, hidden)
        for part, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
            yield f"{layer}mlp.{part}_proj.weight", shape


def make_source(folder: Path, layers: int) -> None:
    """A model folder with its manifest, if it is not there."""
    if (folder / "manifest.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    hf.write_weights(folder, RandomTensors(layers), SHARD_BYTES)
    write_manifest(folder, "huggingface", hf.HuggingFaceTensors(folder))


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
    "to Megatron": lambda source, destination: write_as("megatron", open_source(source), destination, SHARD_BYTES),
    "from Megatron": lambda source, destination: write_as("huggingface", open_source(source), destination, SHARD_BYTES),
    "transformers from_pretrained and save_pretrained": _transformers,
}


def _anonymous_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def run_step(name: str, source: Path, destination: Path) -> dict[str, float]:
    """Run a step in this process: seconds and peak MiB of anonymous memory."""
    peak, finished = [_anonymous_megabytes()], threading.Event()

    def sample() -> None:
        while not finished.wait(0.005):
            peak[0] = max(peak[0], _anonymous_megabytes())

    thread = threading.Thread(target=sample)
    thread.start()
    start = time.perf_counter()
    STEPS[name](source, destination)
    seconds = time.perf_counter() - start
    finished.set()
    thread.join()
    return {"seconds": seconds, "megabytes": peak[0]}


def _measured(name: str, source: Path, destination: Path) -> dict[str, float]:
    shutil.rmtree(destination, ignore_errors=True)
    os.sync()
    command = [sys.executable, __file__, str(source), "--step", name, "--destination", str(destination)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, repeats: int) -> None:
    source, there, other = folder / "source", folder / "megatron", folder / "other"
    rounds: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(repeats):
        for name in list(STEPS)[1:]:
            copied = _measured("cp and fsync", source, other)
            shutil.rmtree(other)
            target = there if name == "to Megatron" else other
            figures = _measured(name, there if name == "from Megatron" else source, target)
            rounds.setdefault(name, []).append((figures["seconds"], copied["seconds"], figures["megabytes"]))
        shutil.rmtree(other)
    print("| step | seconds | cp and fsync | ratio | peak anonymous MiB |")
    print("|---|---|---|---|---|")
    for name, found in rounds.items():
        seconds, copied_seconds = (statistics.median(figures[n] for figures in found) for n in (0, 1))
        ratio = statistics.median(figures[0] / figures[1] for figures in found)
        memory = max(figures[2] for figures in found)
        print(f"| {name} | {seconds:.1f} | {copied_seconds:.1f} | {ratio:.2f} | {memory:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", choices=STEPS, help="used by the script itself")
    parser.add_argument("--destination", type=Path)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(run_step(options.step, options.folder, options.destination)))
        return
    make_source(options.folder / "source", options.layers)
    measure(options.folder, options.repeats)


if __name__ == "__main__":
    main()
