"""Program that starts Megatron-LM's train_rl.py with our agent.

`python start.py ARGUMENTS` in each rank, with Megatron-LM's Python. The environment variable DAGRPO_JOB names the job, DAGRPO_ADDRESS
this node's address among several. Four names of Megatron-LM are replaced, since it has no place for them: its list of agents gets ours, its
client of the text server asks for rollout.max_new_tokens, its engines listen at that address instead of the host's name, and its log of an
iteration also writes our line of JSON.
"""

import functools
import importlib.util
import inspect
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AGENT = "dagrpo_agent"
JOB, ADDRESS = "DAGRPO_JOB", "DAGRPO_ADDRESS"
WATCHER = "while kill -0 $1 2>/dev/null; do sleep 1; done; kill -KILL 0"


class Steps:
    """File with a line for each step: means over its updates, the last learning rate, and what the agent has measured."""

    def __init__(self, path: Path, updates: int, agent: Any) -> None:
        self._path, self._updates, self._agent = path, updates, agent
        self._figures: list[dict[str, float]] = []

    def add(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Add the figures of an update, which Megatron-LM calls an iteration; they count from 1."""
        self._figures.append({name: float(value) for name, value in figures.items() if value is not None})
        if iteration % self._updates:
            return
        names = set.intersection(*map(set, self._figures))
        means = {name: sum(each[name] for each in self._figures) / len(self._figures) for name in sorted(names)}
        last = {name: self._figures[-1][name] for name in names & {"learning_rate"}}
        self._figures.clear()
        with self._path.open("a") as file:
            file.write(
                json.dumps({"step": iteration // self._updates, "data": {**means, **last, **self._agent.taken()}})
                + "\n"
            )


def register(path: str) -> Any:
    """Return the module of our agent, a file, which Megatron-LM's list of agents then names."""
    from megatron.rl.agent.registry import AGENT_REGISTRY

    spec = importlib.util.spec_from_file_location(AGENT, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[AGENT] = module
    spec.loader.exec_module(module)
    AGENT_REGISTRY[AGENT] = f"{AGENT}:Agent"
    return module


def limit(tokens: int) -> None:
    """Let the client of the text server ask for at most `tokens` new ones: it would fill the sequence."""
    from megatron.rl.inference import megatron as client

    connected = client.AsyncOpenAI

    def limited(*given: Any, **options: Any) -> Any:
        made = connected(*given, **options)
        completions = made.chat.completions
        completions.create = functools.partial(completions.create, max_completion_tokens=tokens)
        return made

    client.AsyncOpenAI = limited


def listen_at(address: str) -> None:
    """Let the engines of all nodes exchange requests at an address. Its default, the name of the host, may mean none that others reach."""
    from megatron.rl.inference import megatron as client

    engine = client.DynamicInferenceEngine
    name = "start_listening_to_data_parallel_coordinator"
    setattr(engine, name, functools.partialmethod(getattr(engine, name), hostname=address))


def follow(steps: Steps) -> None:
    """Let Megatron-LM's log of an iteration add to our file, too."""
    from megatron.training import training

    log = training.training_log
    parameters = inspect.signature(log)

    @functools.wraps(log)
    def logged(*given: Any, **options: Any) -> Any:
        of = parameters.bind(*given, **options).arguments
        figures = {name: of[name] for name in ("learning_rate", "grad_norm")}
        result = log(*given, **options)
        steps.add(of["iteration"], {**of["loss_dict"], **figures})
        return result

    training.training_log = logged


def end_with(launcher: int) -> None:
    """End this rank and its children when the process `launcher` has ended. A rank has another session than torchrun."""
    subprocess.Popen(["/bin/sh", "-c", WATCHER, "watcher", str(launcher)], stdin=subprocess.DEVNULL)


def enter(source: str) -> None:
    """Make a checkout the working directory, and the first place of imports: instead of this file's folder."""
    os.chdir(source)
    sys.path[0] = source


def main() -> None:
    """Train with the arguments of the command line."""
    end_with(os.getppid())
    job = json.loads(Path(os.environ[JOB]).read_text())
    enter(job["source"])
    agent = register(job["agent"])
    limit(job["max_new_tokens"])
    if address := os.environ.get(ADDRESS):
        listen_at(address)
    if os.environ.get("RANK", "0") == "0":
        follow(Steps(Path(job["metrics"]), job["updates"], agent))
    sys.argv[0] = "train_rl.py"
    runpy.run_path(str(Path(job["source"]) / "train_rl.py"), run_name="__main__")


if __name__ == "__main__":
    main()
