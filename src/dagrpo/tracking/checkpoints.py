"""Checkpoints of a run's seed: which policy each folder holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

DIGEST = "manifest.sha256"  # the tag of a model with the checkpoint that is evaluated
TRAINER_DIGEST = "manifest.trainer.sha256"  # the same policy's, as the trainer has it
MANIFEST = "manifest.json"
SEEDS = "runs"  # results/<experiment>/runs/seed_<seed>/<folder>/manifest.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The content of a checkpoint folder of a run's seed."""

    policy: str  # base, trained
    evaluated: str  # the folder in which that policy is evaluated
    tag: str  # under which its model has the digest of this folder


PLACES: Mapping[str, Place] = {
    "sft": Place(policy="base", evaluated="sft", tag=DIGEST),
    "initial": Place(policy="base", evaluated="sft", tag=TRAINER_DIGEST),
    "policy": Place(policy="trained", evaluated="exported", tag=TRAINER_DIGEST),
    "exported": Place(policy="trained", evaluated="exported", tag=DIGEST),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A manifest that a stage reads or writes."""

    place: Place
    digest: str
    evaluated: str  # the folder in which the policy is evaluated
    seed: str


def checkpoints_in(digests: Mapping[str, str]) -> list[Checkpoint]:
    """Return the checkpoints of a run's seeds among {path: sha256}."""
    checkpoints = []
    for path, digest in sorted(digests.items()):
        parts = PurePosixPath(path).parts
        if len(parts) == 6 and parts[2] == SEEDS and parts[5] == MANIFEST and parts[4] in PLACES:
            place = PLACES[parts[4]]
            evaluated = str(PurePosixPath(*parts[:4], place.evaluated))
            seed = parts[3].removeprefix("seed_")
            checkpoints.append(Checkpoint(place=place, digest=digest, evaluated=evaluated, seed=seed))
    return checkpoints


def policies_in(paths: Iterable[str]) -> set[str]:
    """Return the policies, base or trained, whose checkpoints are among the paths."""
    return {checkpoint.place.policy for checkpoint in checkpoints_in(dict.fromkeys(paths, ""))}
