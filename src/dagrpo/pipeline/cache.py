"""Reuse: outputs that are there are kept, equal ones elsewhere shared.

Either needs the same stage, seed, parameters, code, inputs and environment; a job whose outputs are the same for all seeds needs no
equal seed. Elsewhere, in another experiment or seed, the files have the same paths below its folder: a cache hit.
`runtime.reuse: false` recomputes everything.

The finished parts of a job that spreads are also in its state until it ends, since Snakemake removes the outputs of a job that fails.
"""

import argparse
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import SEED, Job, Stage
from dagrpo.pipeline.record import (
    STATES,
    declared,
    in_any_experiment,
    is_whole,
    outputs_of,
    parts_of,
    record_of,
    runtime_of,
)
from dagrpo.utils.console import say
from dagrpo.utils.files import atomic_file, atomic_folder, copy, read_json, sha256_of, share
from dagrpo.utils.locks import exclusive_access
from dagrpo.utils.manifest import MANIFEST, listed_files

SAME = ("key", "environment")
MAKING = STATES / "making"  # locks of outputs that several jobs would make
FINISHED = "finished"  # in the state of a part: its outputs, until the job ends


def is_made(stage: Stage, options: argparse.Namespace) -> bool:
    """Return True if the outputs of a job are there and would be made again; False if reuse is off."""
    parts = [(part, outputs_of(part)["provenance"]) for part in parts_of(options)]
    if not all(provenance.is_file() for _, provenance in parts) or not _may_reuse(stage, options):
        return False
    return all(_is_the_same(provenance, record_of(stage, part)) for part, provenance in parts)


def cache_hit(stage: Stage, options: argparse.Namespace) -> Stage | None:
    """Return a stage that takes equal outputs of another experiment or seed; None without a cache hit, or if reuse is off."""
    if not _may_reuse(stage, options):
        return None
    source = equal_execution(record_of(stage, options), outputs_of(options)["provenance"])
    if source is None:
        return None
    options.taken_from = source
    return replace(stage, work=partial(take_outputs, source=source))


@contextmanager
def waiting_for_equal_job(stage: Stage, options: argparse.Namespace) -> Iterator[list[int]]:
    """Wait until no other job makes the same outputs, and keep others waiting: of another seed, or of another experiment.

    Yields the descriptors that keep them waiting as long as a child has them; none if reuse is off.
    """
    if not _may_reuse(stage, options):
        yield []
        return
    lock = MAKING / f"{record_of(stage, options)['key'][:16]}.lock"
    place = in_any_experiment(outputs_of(options)["provenance"].parent.as_posix(), options.experiment)
    with exclusive_access(Path(SEED.sub("/runs/*/", place)), lock, patience=math.inf) as descriptor:
        yield [descriptor]


def _may_reuse(stage: Stage, options: argparse.Namespace) -> bool:
    return runtime_of(options.runtime).reuse and stage.reusable(declared(options.job)["params"])


def keep_finished(state: Path, outputs: Mapping[str, Path]) -> None:
    """Keep copies of the outputs of a finished part in its state."""
    with atomic_folder(state / FINISHED) as temporary:
        for name, path in outputs.items():
            copy(path, temporary / name)


def restored(state: Path, outputs: Mapping[str, Path]) -> bool:
    """Put the outputs of a part that was finished before its job failed in their places; return False if it was not finished."""
    kept = {path: state / FINISHED / name for name, path in outputs.items()}
    if not all(source.is_file() for source in kept.values()):
        return False
    for path, source in kept.items():
        _copy(source, path)
    return True


def equal_execution(record: Mapping[str, Any], provenance: Path) -> Path | None:
    """Return the provenance.json of outputs elsewhere that match this record; None without a match.

    `provenance`: where this record's provenance.json is to be written.
    """
    if provenance.parts[1:2] != (record["experiment"],):
        return None
    top, _, *inner = SEED.sub("/runs/*/", provenance.as_posix()).split("/")
    for candidate in sorted(Path(top).glob("/".join(["*", *inner]))):
        is_of_a_seed = SEED.search(candidate.as_posix()) or not SEED.search(provenance.as_posix())
        if candidate != provenance and is_of_a_seed and _is_the_same(candidate, record):
            return candidate
    return None


def take_outputs(job: Job, source: Path) -> None:
    """Take every output of the job from the execution behind the provenance.json `source`.

    Snakemake needs declared files that it may write to, which are copies; the others of a checkpoint may be read-only links (`share`).
    Raises UserError if an original changed meanwhile.
    """
    digests = read_json(source)["outputs"]
    for name, path in job.outputs.items():
        if name == "provenance":
            continue
        top, _, *inner = path.parts
        seed = SEED.search(source.as_posix())
        original = Path(SEED.sub(seed[0] if seed else "", Path(top, source.parts[1], *inner).as_posix()))
        if path.name == MANIFEST:
            _share_folder(original.parent, path.parent)
        else:
            _copy(original, path)
        if sha256_of(path) != digests.get(str(original)):
            raise UserError(f"{original} changed while it was copied: run again.")
    say(f"{job.stage}: cache hit, taken from {source.parent}.")


def _is_the_same(candidate: Path, record: Mapping[str, Any]) -> bool:
    """Return True if a provenance.json matches the record and its files are intact; missing or damaged ones are skipped."""
    try:
        other = read_json(candidate)
        if other["experiment"] != candidate.parts[1]:  # a user's copy of an experiment's folders
            return False
        same = all(other[name] == record[name] for name in SAME)
        return same and all(is_whole(Path(path), digest) for path, digest in other["outputs"].items())
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        return False


def _share_folder(source: Path, destination: Path) -> None:
    names = listed_files(source / MANIFEST)
    with atomic_folder(destination) as temporary:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            share(source / name, temporary / name)
        copy(source / MANIFEST, temporary / MANIFEST)


def _copy(source: Path, destination: Path) -> None:
    with atomic_file(destination) as temporary:
        copy(source, temporary)
