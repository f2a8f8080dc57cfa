"""The jobs of an experiment, each with its provenance file."""

from collections.abc import Sequence
from pathlib import Path

from dagrpo.config.schema import Params

CHECKPOINTS = ("sft", "initial", "policy", "exported")
POLICIES = ("base", "trained")
EVALUATIONS = ("completions", "scores")


def expected(params: Params, folder: str) -> list[Path]:
    """Return the provenance files of a complete experiment, in the order of the pipeline."""
    experiment, results = params.experiment, Path("results", folder)
    runs = [results / "runs" / f"seed_{seed}" for seed in experiment.seeds]
    return [
        *(Path("data", folder, task, "provenance.json") for task in experiment.tasks),
        Path("models", folder, params.model.name, "provenance.json"),
        Path("models", folder, "teacher/provenance.json"),
        results / "difficulty/provenance.json",
        *(run / checkpoint / "provenance.json" for run in runs for checkpoint in CHECKPOINTS),
        *(path for run in runs for path in _evaluations(run, experiment.evaluate)),
        results / "report/provenance.json",
    ]


def _evaluations(run: Path, tasks: Sequence[str]) -> list[Path]:
    folders = [run / "eval" / task / policy for task in tasks for policy in POLICIES]
    return [folder / f"{name}.provenance.json" for folder in folders for name in EVALUATIONS]
