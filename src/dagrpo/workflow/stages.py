"""Which sections of params.yaml a stage reads: the same keys for Snakemake and for DVC."""

from typing import Any

from dagrpo.files import canonical_json
from dagrpo.params.schema import Params

KEYS: dict[str, tuple[str, ...]] = {
    "prepare": ("data", "experiment.evaluate", "experiment.train"),
    "model": ("model",),
    "sft": ("sft",),
    "difficulty": (
        "difficulty",
        "rollout",
        "reward.verifier",
        "reward.extractor",
        "reward.verify_seconds",
        "runtime.engine",
    ),
    "convert": ("checkpoint",),
    "train": ("rollout", "reward", "algorithm", "training", "runtime"),
    "export": ("checkpoint",),
    "sample": ("evaluation.sampling", "rollout.dtype", "rollout.deterministic", "runtime.engine"),
    "score": ("evaluation.scoring",),
    "report": ("report",),
}


def sections(params: Params, stage: str) -> str:
    """The stage's own parameters as JSON, nested as in params.yaml."""
    values = params.model_dump()
    chosen: dict[str, Any] = {}
    for key in KEYS[stage]:
        *parents, last = key.split(".")
        source, target = values, chosen
        for parent in parents:
            source, target = source[parent], target.setdefault(parent, {})
        target[last] = source[last]
    return canonical_json(chosen)
