"""Changed files and lines of a stage's code.

Provenance has one digest of all the code. Snakemake's own record of the job has one per file; the former text is
looked for in git, by its digest.
"""

import difflib
import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from dagrpo.config.places import place_of
from dagrpo.utils.files import sha256_of

MOST_VERSIONS = 200  # of a file, that are looked at
GIT_SECONDS = 20


def digests_now(files: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of each file of code that is there."""
    places = {file: place_of(file) for file in files}
    return {file: sha256_of(place) for file, place in places.items() if place.is_file()}


def changed_lines(file: str, digest: str) -> list[str]:
    """Return the lines that were taken out of a file and put in, such as "12: - old"; empty where git knows no such text."""
    place = place_of(file)
    then = _text_of(place, digest)
    if then is None or not place.is_file():
        return []
    now = place.read_text(encoding="utf-8", errors="replace")
    return list(_numbered(then.splitlines(), now.splitlines()))


def _numbered(then: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    for kind, start, stop, now_start, now_stop in difflib.SequenceMatcher(
        None, then, now, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            yield from (f"{number + 1}: - {then[number]}" for number in range(start, stop))
            yield from (f"{number + 1}: + {now[number]}" for number in range(now_start, now_stop))


def _text_of(place: Path, digest: str) -> str | None:
    """Return the file as it was with that digest, in any commit that touched it."""
    for commit in (
        _git(place.parent, "log", "--format=%H", f"--max-count={MOST_VERSIONS}", "--", place.name).decode().split()
    ):
        content = _git(place.parent, "show", f"{commit}:./{place.name}")
        if hashlib.sha256(content).hexdigest() == digest:
            return content.decode(errors="replace")
    return None


def _git(folder: Path, *arguments: str) -> bytes:
    """Return git's output; nothing without git or a repository."""
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments), capture_output=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout
