"""Damage of files between two stages: what a stage reads is broken, and the stage asked for once more."""

import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults import said
from tests.faults.aftermath import other_bytes
from tests.faults.tally import Fault
from tests.pipeline.snakemake.clones import RUN

from dagrpo.utils.files import read_json

NOTES = (
    ".state/running/*.json",
    ".state/jobs/*.json",
    "dvc.lock",
    "dvc.yaml",
    ".snakemake/metadata/*",
)
SCORES = f"{RUN}/eval/arithmetic/trained/scores.json"


def _truncate(path: Path, draw: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path, draw: random.Random) -> None:
    """One bit, as a disk does it: the times of the file stay."""
    content, times = bytearray(path.read_bytes()), path.stat()
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def _replace_by_garbage(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(max(path.stat().st_size, 1)))


def _replace_by_a_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "a bit flipped": _flip,
    "deleted": _delete,
    "garbage": _replace_by_garbage,
    "a folder instead": _replace_by_a_folder,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file to damage, and the stage that reads it: what it makes is removed first, and asked for again."""

    file: str
    target: str
    makes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The file's name without numbers and digests: what kind of file it is."""
        parent, name = Path(self.file).parts[-2:] if "/" in self.file else ("", self.file)
        kind = re.sub(r"[0-9a-f]{8,}|\d+|(?<=metadata/).*", "*", f"{parent}/{name}")
        return kind.lstrip("/")


def places(folder: Path) -> list[Place]:
    """One of each kind of file that lies between two stages of a finished experiment."""
    found: dict[str, Place] = {}
    for place in [*_between_stages(folder), *_beside_stages(folder)]:
        found.setdefault(f"{place.kind} for {place.target}", place)
    return list(found.values())


def _between_stages(folder: Path) -> Iterator[Place]:
    for provenance in sorted(folder.glob("*/tiny/**/*provenance.json")):
        told = read_json(provenance)
        makes = (*told["outputs"], str(provenance.relative_to(folder)))
        for name in told["inputs"]:
            for file in _files_of(folder, name):
                yield Place(file=file, target=makes[0], makes=makes)


def _files_of(folder: Path, name: str) -> list[str]:
    """A file; for a manifest, the files of its folder."""
    path = folder / name
    files = [file for file in path.parent.rglob("*") if file.is_file()] if path.name == "manifest.json" else [path]
    return [str(file.relative_to(folder)) for file in sorted(files) if not file.name.startswith(".")]


def _beside_stages(folder: Path) -> Iterator[Place]:
    """Resumable states, which training goes on from; notes of ours, of Snakemake's and of DVC's."""
    trained, tuned = (_made_by(folder, f"{RUN}/{name}/provenance.json") for name in ("policy", "sft"))
    scored = _made_by(folder, f"{RUN}/eval/arithmetic/trained/scores.provenance.json")
    for state in sorted(folder.glob(".state/tiny-*")):
        yield from _all_read_by(trained if (state / "metrics").exists() else tuned, folder, state.rglob("*.*"))
    for pattern in NOTES:
        yield from _all_read_by(scored, folder, folder.glob(pattern))


def _all_read_by(makes: tuple[str, ...], folder: Path, paths: Iterable[Path]) -> Iterator[Place]:
    for path in sorted(path for path in paths if path.is_file()):
        yield Place(file=str(path.relative_to(folder)), target=makes[0], makes=makes)


def _made_by(folder: Path, provenance: str) -> tuple[str, ...]:
    return (*read_json(folder / provenance)["outputs"], provenance)


def cause(folder: Path, place: Place, way: str, seed: int, expected: Mapping[str, str]) -> Fault:
    """Damage a file of a finished clone and run the stage that reads it: the fault, with what was not as it should be."""
    for name in place.makes:
        _remove(folder, name)
    WAYS[way](folder / place.file, random.Random(seed))
    command = ("snakemake", "--cores", "all", place.target)
    wanted = {name: digest for name, digest in expected.items() if name in {*place.makes, place.file}}
    differences = _consequences(folder, command, wanted)
    return Fault(kind=f"damage: {way}", what=f"{place.file}, for {place.target}", differences=tuple(differences))


def _remove(folder: Path, name: str) -> None:
    """An output; with a manifest, the folder that it stands for."""
    path = folder / name
    if path.name == "manifest.json":
        shutil.rmtree(path.parent, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _consequences(folder: Path, command: tuple[str, ...], wanted: Mapping[str, str]) -> list[str]:
    code, output = said.run(folder, command)
    if code == 0:
        return other_bytes(wanted, folder)
    sentence = said.sentence_in(folder, output)
    wrong = said.faults_of(sentence, output)
    said.follow(folder, sentence)
    code, output = said.run(folder, command)
    if code != 0:
        return [
            *wrong,
            f"its remedy does not work: {sentence[:300]}",
            f"then: {said.sentence_in(folder, output)[:300]}",
        ]
    return [*wrong, *other_bytes(wanted, folder)]
