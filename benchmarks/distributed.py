"""Memory and seconds of starting from a checkpoint and writing one with a policy that several processes share (FSDP).

    OMP_NUM_THREADS=1 python -m benchmarks.distributed /tmp/processes

Makes a random bfloat16 model of 607 million parameters (the shape of benchmarks/convert.py with 8 layers) in the format
dcp. Then one, two and four processes load it in float32, as the train stage does, write it as a policy, and one process
exports that. Memory is the peak of RssAnon of the process that has most; the measure is the model itself in float32.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from benchmarks.convert import CONFIGS, SHARD_BYTES, AnonymousPeak, make_source

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import export, write_as
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import write_manifest
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo.checkpoints.tensors import parameter_count
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh

LAYERS = 8
PROCESSES = (1, 2, 4)


def start_and_write(initial: Path, policy: Path) -> None:
    """In each process that torchrun starts: load, write, and note seconds and MiB beside the policy."""
    from dagrpo.trainer.model.fsdp import load_policy
    from dagrpo.utils.distributed import process_group

    with process_group() as world:
        noted: dict[str, float] = {}
        world.barrier()
        with AnonymousPeak() as loading:
            start = time.perf_counter()
            loaded = load_policy(initial, world)
            world.barrier()
            noted["load seconds"] = time.perf_counter() - start
        with AnonymousPeak() as saving:
            start = time.perf_counter()
            save_sharded(loaded.model, initial, policy, world)
            noted["write seconds"] = time.perf_counter() - start
        noted |= {"load MiB": loading.megabytes, "write MiB": saving.megabytes}
        policy.with_name(f"{policy.name}.{world.rank}.json").write_text(json.dumps(noted))


def _together(count: int, initial: Path, policy: Path) -> dict[str, float]:
    launch = [sys.executable, "-m", "dagrpo.pipeline.launch", str(count), __file__]
    environment = os.environ | {"BENCHMARK_POLICY": str(policy), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*launch, str(initial)], check=True, env=environment)
    noted = [json.loads(path.read_text()) for path in policy.parent.glob(f"{policy.name}.*.json")]
    assert len(noted) == count
    return {key: max(each[key] for each in noted) for key in noted[0]}


def _exported(policy: Path, destination: Path) -> dict[str, float]:
    with AnonymousPeak() as peak:
        start = time.perf_counter()
        export(policy, destination, Checkpoint())
        seconds = time.perf_counter() - start
    return {"export seconds": seconds, "export MiB": peak.megabytes}


def _add_tokenizer(model: Path) -> None:
    """That of a tiny model: nothing is tokenized here, but a checkpoint must have one."""
    with TemporaryDirectory() as scratch:
        make_fresh(Path(scratch) / "tiny", Fresh(hidden_size=16, num_hidden_layers=1), torch.float32)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(Path(scratch) / "tiny" / name, model / name)
    write_manifest(model, "huggingface", HuggingFaceTensors(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if "BENCHMARK_POLICY" in os.environ:
        start_and_write(folder, Path(os.environ["BENCHMARK_POLICY"]))
        return
    make_source(folder / "source", CONFIGS["dense"] | {"num_hidden_layers": LAYERS})
    _add_tokenizer(folder / "source")
    write_as("dcp", open_checkpoint(folder / "source"), folder / "initial", SHARD_BYTES)
    whole = parameter_count(open_tensors(folder / "initial")) * 4 / 1024**2
    print(f"the model in float32: {whole:,.0f} MiB; MiB of a process")
    print("| processes | load s | load MiB | of the model | write s | write MiB | export s | export MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for count in PROCESSES:
        policy = folder / f"policy_{count}"
        row = _together(count, folder / "initial", policy) | _exported(policy, folder / "exported")
        print(
            f"| {count} | {row['load seconds']:.1f} | {row['load MiB']:,.0f} | {row['load MiB'] / whole:.2f} "
            f"| {row['write seconds']:.1f} | {row['write MiB']:,.0f} "
            f"| {row['export seconds']:.1f} | {row['export MiB']:,.0f} |"
        )
        shutil.rmtree(policy)


if __name__ == "__main__":
    main()
