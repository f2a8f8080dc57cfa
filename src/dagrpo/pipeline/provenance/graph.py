"""Files and the executions between them, joined by content."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import Execution, File

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
CANDIDATES_SHOWN = 5


class Graph:
    """A graph of files (path and content) and executions. Earlier executions in the list win where two made a file."""

    def __init__(self, executions: Sequence[Execution], root: Path) -> None:
        self._root = root
        self._made_by: dict[File, Execution] = {}
        self._used_by: dict[File, list[Execution]] = defaultdict(list)
        self._files: dict[str, list[File]] = defaultdict(list)  # by digest
        self._contents: dict[str, list[str]] = defaultdict(list)  # digests by path
        self._digest_now: dict[str, str | None] = {}
        for execution in executions:
            for file in execution.outputs:
                self._made_by.setdefault(file, execution)
            for file in execution.inputs:
                self._used_by[file].append(execution)
            for file in (*execution.outputs, *execution.inputs):
                if file not in self._files[file.digest]:
                    self._files[file.digest].append(file)
                    self._contents[file.path].append(file.digest)

    def maker(self, file: File) -> Execution | None:
        """Return the execution that wrote the file, or else one that wrote the same content at another path."""
        places = (file, *self._files.get(file.digest, ()))
        return next((self._made_by[place] for place in places if place in self._made_by), None)

    def users(self, file: File) -> list[Execution]:
        """Return the executions that read the file, or else those that read the same content at another path."""
        if file in self._used_by:
            return self._used_by[file]
        return [execution for place in self._files.get(file.digest, ()) for execution in self._used_by.get(place, ())]

    def same_content(self, file: File) -> list[File]:
        """Return the other paths at which that content is known."""
        return [place for place in self._files[file.digest] if place != file]

    def state(self, file: File) -> str:
        """Return how the tree differs from the record: `missing`, `overwritten` by another execution, or `changed` by hand."""
        now = self._now(file.path)
        if now == file.digest:
            return ""
        if now is None:
            return "missing"
        return "overwritten" if now in self._contents[file.path] else "changed"

    def find(self, target: str) -> File:
        """Return the file of a path, a checkpoint folder or a digest (8 digits or more).

        UserError when nothing on record matches, or a digest matches several contents.
        """
        path = self._relative(target)
        now = self._now(path)
        if now is not None or path in self._contents:
            return self._at(path, now)
        match = _DIGEST.fullmatch(target.lower())
        if match is None:
            raise UserError(f"{target} is neither a file nor a digest of at least 8 hex digits: name one of these.")
        return self._with_digest(match[1])

    def _at(self, path: str, now: str | None) -> File:
        if now is not None and File(path, now) in self._files.get(now, ()):
            return File(path, now)
        if now is not None and self._files.get(now):
            return self._files[now][0]
        if path in self._contents:
            return File(path, self._contents[path][0])
        raise UserError(f"{path} is on no record: no stage has read or written this content, or this path.")

    def _with_digest(self, prefix: str) -> File:
        matches = [digest for digest in self._files if digest.startswith(prefix)]
        if not matches:
            raise UserError(f"No stage has read or written content with the digest {prefix}: check its digits.")
        if len(matches) > 1:
            names = ", ".join(f"{digest[:16]} ({self._files[digest][0].path})" for digest in matches[:CANDIDATES_SHOWN])
            raise UserError(f"The digest {prefix} fits {len(matches)} files: give more digits of {names}.")
        places = self._files[matches[0]]
        return next((place for place in places if not self.state(place)), places[0])

    def _relative(self, target: str) -> str:
        path = Path(target) if not Path(target).is_dir() else Path(target) / MANIFEST
        absolute, root = path.absolute(), self._root.absolute()
        return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(path)

    def _now(self, path: str) -> str | None:
        if path not in self._digest_now:
            file = self._root / path
            self._digest_now[path] = sha256_of(file) if file.is_file() else None
        return self._digest_now[path]
