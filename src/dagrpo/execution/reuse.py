"""What another experiment has made already is taken over, not made again: its files get a second name (hard links).

Asked for is the same stage, seed, parameters, code and inputs, and the same environment; the places of the files differ
in the experiment's name alone. Whoever wants everything made anew sets `runtime.reuse: false`.
"""

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from dagrpo.console import say
from dagrpo.errors import UserError
from dagrpo.execution.declaration import Job, Stage
from dagrpo.execution.record import declared, outputs_of, record_of, runtime_of
from dagrpo.execution.whole import is_whole
from dagrpo.files import atomic_file, atomic_folder, link_or_copy, read_json, sha256_of
from dagrpo.listing import MANIFEST, listed_files

SAME = ("key", "environment")


def taking_over(stage: Stage, options: argparse.Namespace) -> Stage | None:
    """A stage that takes over what another experiment has made; None where none has, or the user wants it made anew."""
    if not runtime_of(options.runtime).reuse or not stage.reusable(declared(options.job)["params"]):
        return None
    source = made_elsewhere(record_of(stage, options), outputs_of(options)["provenance"])
    if source is None:
        return None
    options.taken_from = source
    return replace(stage, work=partial(take_over, source=source))


def made_elsewhere(record: Mapping[str, Any], provenance: Path) -> Path | None:
    """The provenance.json of another experiment whose outputs are those of this record; None where there is none.

    `provenance`: where this record's own one is to be.
    """
    own = PurePosixPath(provenance)
    if own.parts[1:2] != (record["experiment"],):
        return None
    top, _, *inner = own.parts
    for candidate in sorted(Path(top).glob("/".join(["*", *inner]))):
        if candidate.parts[1] != record["experiment"] and _is_the_same(candidate, record):
            return candidate
    return None


def take_over(job: Job, source: Path) -> None:
    """Link every output of the job to the file that the execution behind the provenance.json `source` has made.

    UserError: an original has changed while it was linked.
    """
    other, made = source.parts[1], read_json(source)["outputs"]
    for name, path in job.outputs.items():
        if name == "provenance":
            continue
        original = in_experiment(path, other)
        if path.name == MANIFEST:
            _link_folder(original.parent, path.parent)
        else:
            _link(original, path)
        if sha256_of(path) != made.get(str(original)):
            raise UserError(f"{original} has changed while it was taken over: run again.")
    say(f"{job.stage}: taken over from {other}, which has made the same.")


def in_experiment(path: Path, experiment: str) -> Path:
    """The same file of another experiment."""
    top, _, *inner = path.parts
    return Path(top, experiment, *inner)


def _is_the_same(candidate: Path, record: Mapping[str, Any]) -> bool:
    """Whether a provenance.json says so, and its files are what it says. Damaged ones are passed over."""
    try:
        other = read_json(candidate)
        if other["experiment"] != candidate.parts[1]:  # a copy that somebody has made of an experiment's folders
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
    """A copy where there is a file already: if the job fails, Snakemake puts that one's content back, in place."""
    replaces = destination.exists()
    with atomic_file(destination) as temporary:
        temporary.unlink()
        (shutil.copyfile if replaces else link_or_copy)(source, temporary)
