"""Which files of the project a stage's result depends on.

An edit to one of them reruns the stage. Code that only shows or records what happens (tracking, progress bars) is
deliberately not listed: it cannot change an output. A test compares this table with what each script really imports.
"""

from pathlib import Path

from dagrpo.files import digest_of, sha256_of

ROOT = Path(__file__).resolve().parents[2]

_COMMON = (
    "src/dagrpo/errors.py",
    "src/dagrpo/files.py",
    "src/dagrpo/stage.py",
    "src/dagrpo/params/__init__.py",
    "src/dagrpo/params/base.py",
)
_CHECKPOINTS = ("src/dagrpo/checkpoints",)
_ROLLOUT = (
    "src/dagrpo/rollout",
    "src/dagrpo/params/rollout.py",
    "src/dagrpo/params/runtime.py",
    "src/dagrpo/rendering.py",
)
_ROWS = ("src/dagrpo/tasks/__init__.py", "src/dagrpo/tasks/schema.py", "src/dagrpo/records.py")
_REWARDS = ("src/dagrpo/rewards", "src/dagrpo/params/reward.py")
_EVALUATION = ("src/dagrpo/evaluation/__init__.py", "src/dagrpo/evaluation/tables.py")
_STATISTICS = ("src/dagrpo/evaluation/outcomes.py", "src/dagrpo/evaluation/statistics.py")
_MANIFEST = ("__init__", "folder", "manifest", "modules", "tensors")
_FITTING = ("__init__", "batches", "optimizer", "policy", "prompts", "rollouts")

CODE: dict[str, tuple[str, ...]] = {
    "prepare": (
        *_COMMON,
        *_REWARDS,
        "src/dagrpo/tasks",
        "src/dagrpo/records.py",
        "src/dagrpo/rendering.py",
        "src/dagrpo/params/data.py",
    ),
    "model": (
        *_COMMON,
        *_CHECKPOINTS,
        "src/dagrpo/models",
        "src/dagrpo/params/checkpoint.py",
        "src/dagrpo/params/experiment.py",
        "src/dagrpo/params/model.py",
    ),
    "sft": (
        *_COMMON,
        *_CHECKPOINTS,
        *_ROWS,
        *(f"src/dagrpo/trainer/{name}.py" for name in _FITTING),
        "src/dagrpo/trainer/sft.py",
        "src/dagrpo/rendering.py",
        "src/dagrpo/params/checkpoint.py",
        "src/dagrpo/params/training.py",
        "src/dagrpo/params/sft.py",
    ),
    "difficulty": (
        *_COMMON,
        *(f"src/dagrpo/checkpoints/{name}.py" for name in _MANIFEST),
        *_ROLLOUT,
        *_ROWS,
        *_REWARDS,
        *_EVALUATION,
        "src/dagrpo/evaluation/difficulty.py",
        "src/dagrpo/evaluation/sampling.py",
        "src/dagrpo/params/difficulty.py",
        "src/dagrpo/params/evaluation.py",
    ),
    "convert": (*_COMMON, *_CHECKPOINTS, "src/dagrpo/params/checkpoint.py"),
    "train": (
        *_COMMON,
        *_CHECKPOINTS,
        *_ROLLOUT,
        *_ROWS,
        *_REWARDS,
        "src/dagrpo/trainer",
        "src/dagrpo/algorithms",
        "src/dagrpo/distributed.py",
        "src/dagrpo/params/algorithm.py",
        "src/dagrpo/params/checkpoint.py",
        "src/dagrpo/params/training.py",
    ),
    "export": (*_COMMON, *_CHECKPOINTS, "src/dagrpo/params/checkpoint.py"),
    "sample": (
        *_COMMON,
        *(f"src/dagrpo/checkpoints/{name}.py" for name in _MANIFEST),
        *_ROLLOUT,
        *_ROWS,
        *_EVALUATION,
        "src/dagrpo/evaluation/sampling.py",
        "src/dagrpo/params/evaluation.py",
    ),
    "score": (
        *_COMMON,
        *_REWARDS,
        "src/dagrpo/records.py",
        *_EVALUATION,
        *_STATISTICS,
        "src/dagrpo/evaluation/scoring.py",
        "src/dagrpo/params/evaluation.py",
    ),
    "report": (
        *_COMMON,
        *_EVALUATION,
        *_STATISTICS,
        "src/dagrpo/report",
        "src/dagrpo/records.py",
        "src/dagrpo/provenance/records.py",
        "src/dagrpo/params/report.py",
    ),
}


def code_files(stage: str) -> list[str]:
    """The stage's script and package files, relative to the project's root, sorted."""
    found = {f"workflow/scripts/{stage}.py"}
    for entry in CODE[stage]:
        path = ROOT / entry
        files = (p for p in path.rglob("*") if p.suffix in {".py", ".j2", ".jinja"}) if path.is_dir() else (path,)
        found.update(str(file.relative_to(ROOT)) for file in files)
    return sorted(found)


def code_digest(stage: str) -> str:
    """One digest of everything `code_files` names."""
    return digest_of({file: sha256_of(ROOT / file) for file in code_files(stage)})
