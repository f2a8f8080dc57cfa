"""The experiments that are killed: as small as they can be, and with processes of every kind among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipeline.snakemake import clones

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse

PATIENT = {"start_timeout": 7200, "request_timeout": 7200}  # whatever else the machine does meanwhile
SMALLEST = {
    "data": {"arithmetic": {"train": 24, "test": 4}},
    "model": {"fresh": {"hidden_size": 32, "intermediate_size": 64}},
    "sft": {"steps": 6, "batch_size": 8},
    # Of a model that is right nowhere no reward differs: without this the policy would be trained by nothing but zeros.
    "algorithm": {"terms": {"entropy": {"coefficient": 0.1}}},
    "training": {"steps": 6, "prompts_per_step": 4, "samples_per_prompt": 2},
    "runtime": {"engine": PATIENT, "sft": {"save_every": 2}, "training": {"save_every": 1}},
    "evaluation": {"scoring": {"bootstrap_draws": 100}},
}
TWO_PROCESSES = {"runtime": {"sft": {"processes": 2}, "training": {"processes": 2}}}
AHEAD = {"training": {"staleness": 2}, "runtime": {"training": {"save_every": 2, "threads": 1}}}
PROGRAMS = {
    "experiment": {"train": "python_math", "evaluate": ["python_math"], "tasks": ["python_math"]},
    "data": {"python_math": {"train": 16, "test": 4, "demonstrated_calls": 1.0}},
    "model": {"fresh": {"max_position_embeddings": 512, "tools": ["code_interpreter"]}},
    "difficulty": {"samples": 1},
    "rollout": {"agent": {"name": "tool_agent", "max_turns": 2}, "max_new_tokens": 72},
    "evaluation": {"sampling": {"max_new_tokens": 72}},
}
PICTURES = {
    "experiment": {"train": "shapes", "evaluate": ["shapes"], "tasks": ["shapes"]},
    "data": {"shapes": {"train": 24, "test": 4}},
    "model": {"max_pixels": 7056, "fresh": {"vision": {"family": "qwen2_5_vl", "depth": 2}}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run. `changes` are laid over the tiny experiment of the other tests."""

    name: str
    changes: Mapping[str, Any]


EXPERIMENTS = (
    Experiment(name="two processes", changes=TWO_PROCESSES),
    Experiment(name="programs in a sandbox", changes=PROGRAMS),
    Experiment(name="pictures", changes=PICTURES),
    Experiment(name="sampled ahead", changes=AHEAD),
)


def undisturbed_run(folder: Path, experiment: Experiment) -> Path:
    """A new clone in which Snakemake has run the experiment to its end; params.yaml and dvc.yaml are committed."""
    clones.clone(folder)
    values = merged(merged(clones.TINY, SMALLEST), experiment.changes)
    (folder / "params.yaml").write_text(params_yaml(parse(values)))
    clones.run(folder, "dagrpo", "generate")
    clones.run(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qam", "experiment")
    clones.run(folder, "snakemake", "--cores", "all", "target", timeout=7200)
    return folder
