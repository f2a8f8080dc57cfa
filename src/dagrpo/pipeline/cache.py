"""Cache hits: outputs of other experiments are hard-linked, not recomputed.

A hit needs the same stage, seed, parameters, code, inputs and environment; the files' paths differ in the experiment's name
alone. `runtime.reuse: false` recomputes everything.
"""

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import Job, Stage
from dagrpo.pipeline.record import declared, is_whole, outputs_of, record_of, runtime_of
from dagrpo.utils.console import say
from dagrpo.utils.files import atomic_file, atomic_folder, link_or_copy, read_json, sha256_of
from dagrpo.utils.manifest import MANIFEST, listed_files

SAME = ("key", "environment")


def cache_hit(stage: Stage, options: argparse.Namespace) -> Stage | None:
    """Return a stage that links another experiment's outputs; None without a cache hit, or if reuse is off."""
    if not runtime_of(options.runtime).reuse or not stage.reusable(declared(options.job)["params"]):
        return None
    source = equal_execution(record_of(stage, options), outputs_of(options)["provenance"])
    if source is None:
        return None
    options.taken_from = source
    return replace(stage, work=partial(link_outputs, source=source))


def equal_execution(record: Mapping[str, Any], provenance: Path) -> Path | None:
    """Return the provenance.json of another experiment's outputs that match this record; None without a match.

    `provenance`: where this record's provenance.json is to be written.
    """
    own = PurePosixPath(provenance)
    if own.parts[1:2] != (record["experiment"],):
        return None
    top, _, *inner = own.parts
    for candidate in sorted(Path(top).glob("/".join(["*", *inner]))):
        if candidate.parts[1] != record["experiment"] and _is_the_same(candidate, record):
            return candidate
    return None


def link_outputs(job: Job, source: Path) -> None:
    """Link every output of the job to the file made by the execution behind the provenance.json `source`.

    Raises UserError if an original changed while it was linked.
    """
    other, digests = source.parts[1], read_json(source)["outputs"]
    for name, path in job.outputs.items():
        if name == "provenance":
            continue
        original = in_experiment(path, other)
        if path.name == MANIFEST:
            _link_folder(original.parent, path.parent)
        else:
            _link(original, path)
        if sha256_of(path) != digests.get(str(original)):
            raise UserError(f"{original} changed while it was linked: run again.")
    say(f"{job.stage}: cache hit, linked from {other}.")


def in_experiment(path: Path, experiment: str) -> Path:
    """Return the corresponding path in another experiment."""
    top, _, *inner = path.parts
    return Path(top, experiment, *inner)


def _is_the_same(candidate: Path, record: Mapping[str, Any]) -> bool:
    """Return True if a provenance.json matches the record and its files are intact; damaged ones are skipped."""
    try:
        other = read_json(candidate)
        if other["experiment"] != candidate.parts[1]:  # a user's copy of an experiment's folders
            return False
        same = all(other[name] == record[name] for name in SAME)
        return same and all(is_whole(Path(path), digest) for path, digest in other["outputs"].items())
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        return False


def _link_folder(source: Path, destination: Path) -> None:
    names = listed_files(source / MANIFEST)
    replaces = (destination / MANIFEST).exists()
    with atomic_folder(destination) as temporary:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source / name, temporary / name)
        (shutil.copyfile if replaces else link_or_copy)(source / MANIFEST, temporary / MANIFEST)


def _link(source: Path, destination: Path) -> None:
    """Link a file, or copy it over an existing one: if the job fails, Snakemake restores that one's content in place."""
    replaces = destination.exists()
    with atomic_file(destination) as temporary:
        temporary.unlink()
        (shutil.copyfile if replaces else link_or_copy)(source, temporary)
