"""Clones of the project to run the real DAG in, on a tiny experiment."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import parse

ROOT = Path(__file__).parents[3]
NAME = "tiny"
RUN = Path(f"results/{NAME}/runs/seed_3")
STEPS = 8
SECONDS = 1800  # that a run may take, on a busy machine
TINY = {
    "experiment": {"name": NAME, "seeds": [3]},
    "data": {"arithmetic": {"train": 40, "test": 12, "levels": ["sum_1_digit"]}},
    "model": {"fresh": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}},
    "sft": {"steps": 90, "batch_size": 32, "learning_rate": 0.003},
    "algorithm": {"kl": {"coefficient": 0.01}},
    "training": {
        "steps": STEPS,
        "prompts_per_step": 8,
        "samples_per_prompt": 4,
        "mini_batches": 2,
        "evaluate_every": 3,
        "evaluation_problems": 5,
        "keep_policies": {"every": 2},
    },
    "runtime": {
        "engine": {"max_total_tokens": 8192, "max_running_requests": 64},
        "training": {"save_every": 2},
        "portable_arithmetic": False,  # tests compute parts of it again in their own process
    },
    "evaluation": {"sampling": {"samples": 2}, "scoring": {"bootstrap_draws": 100}},
}


def clone(destination: Path) -> Path:
    """A git repository with the project's files as they are now, and the tiny experiment in params.yaml."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and name != "dvc.lock":
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, destination / name, follow_symlinks=False)
    for compiled in (ROOT / "src").rglob("__pycache__"):  # valid with the time of its source: 4 s of every clone
        shutil.copytree(compiled, destination / compiled.relative_to(ROOT), dirs_exist_ok=True)
    (destination / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")  # as it is before the first run
    (destination / "params.yaml").write_text(params_yaml(parse(TINY)))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "clone"]):
        subprocess.run([*git, *command], cwd=destination, check=True)
    return destination


def copied(folder: Path, destination: Path) -> Path:
    """A clone with all that was run in it, to change."""
    return shutil.copytree(folder, destination, symlinks=True)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command in a clone: programs of this interpreter's folder, the clone's own package.

    Unless the environment says otherwise, no run is recorded in MLflow: its import alone takes 5 s each time.
    """
    programs = Path(sys.executable).parent  # not VIRTUAL_ENV's: another environment may be active
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "MLFLOW_", "OMP_"))}
    return (
        {"DAGRPO_TRACKING": "later"}
        | kept
        | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(folder / "src")}
    )


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command in a clone, as the leader of a process group; its output is kept in <clone>/output.txt."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder),
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )


def run(folder: Path, *command: str, timeout: float = SECONDS) -> str:
    """Run a command in a clone to its end; its whole output, or AssertionError with it."""
    code, output = _ended(folder, command, timeout)
    assert code == 0, output[-6000:]
    return output


def refused(folder: Path, *command: str) -> str:
    """Run a command in a clone that ends with an error and no traceback; its whole output."""
    code, output = _ended(folder, command, 300)
    assert code != 0, output[-6000:]
    assert "Traceback" not in output
    return output


def _ended(folder: Path, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout + done.stderr


def outputs(folder: Path) -> dict[str, str]:
    """The sha256 of every versioned file below data, models and results."""
    return dict(sorted(_digests(folder)))


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for top in ("data", "models", "results"):
        for path in (folder / top).rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)  # of a stage at work
            if path.is_file() and not hidden and path.name not in {".gitignore", ".snakemake_timestamp", "README.md"}:
                yield str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for_step(folder: Path, step: int) -> None:
    """Return as soon as the training of a clone has recorded a step."""
    wait_until(folder, lambda: any(folder.glob(f".state/*/metrics/step_{step:05d}.json")))


def wait_until(folder: Path, is_so: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Return as soon as something is so; AssertionError with the output of the clone's command after some seconds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, (folder / "output.txt").read_text()[-6000:]
        time.sleep(0.02)


def kill(folder: Path, *words: str) -> None:
    """Kill the processes of a clone whose command line has all of `words`; AssertionError where there is none."""
    victims = processes(folder, *words)
    assert victims, f"no process with {words}"
    for victim in victims:
        victim.kill()


def require_no_process(folder: Path) -> None:
    """Wait for the processes of a clone to end by themselves, the server included; AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while left := processes(folder, "python"):
        assert time.monotonic() < deadline, [process.cmdline() for process in left if process.is_running()]
        time.sleep(0.2)


def processes(folder: Path, *words: str) -> list[psutil.Process]:
    """Live processes of a clone whose command line has all of `words`."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if Path(process.cwd()) == folder and all(word in line for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found
