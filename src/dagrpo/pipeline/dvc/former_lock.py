"""Today's form of a dvc.lock whose entries list each file of code."""

import json
import re
from collections.abc import Mapping
from hashlib import md5
from pathlib import PurePosixPath

from dagrpo.config.places import SCRIPT
from dagrpo.pipeline.dvc.code import FOLDER, link_name
from dagrpo.pipeline.dvc.lock_text import entries_of, text_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import TOPS

_FORMER = f"    - path: {SCRIPT}\n"  # in an entry that lists each file of the stage's code
_DEPS = re.compile(r"(?<=    deps:\n)(?:    - [^\n]*\n|      [^\n]*\n)+")
_FILE = re.compile(
    r"    - path: ([^\n]+)\n      hash: md5\n      md5: ([0-9a-f]{32})\n      size: (\d+)\n(?:      isexec: true\n)?"
)


def without_code_files(text: str) -> str | None:
    """Return a dvc.lock whose entries list each file of code in today's form, with the same digests; None if none of them does.

    A folder's digest follows from its files', so that DVC finds the same stages changed as before.
    """
    entries = entries_of(text) if _FORMER in text else None
    if entries is None:
        return None
    return text_of({name: _without_code_files(entry) if _FORMER in entry else entry for name, entry in entries.items()})


def _without_code_files(entry: str) -> str:
    stage = re.split("[@:]", entry.strip(), maxsplit=1)[0]

    def folded(deps: re.Match[str]) -> str:
        files = [file for file in _FILE.finditer(deps.group()) if _is_code(file.group(1))]
        others = _FILE.sub(lambda file: "" if _is_code(file.group(1)) else file.group(), deps.group())
        digests = {link_name(file.group(1)): file.group(2) for file in files}
        return others + _folder_of(stage, digests, sum(int(file.group(3)) for file in files))

    return _DEPS.sub(folded, entry, count=1)


def _is_code(path: str) -> bool:
    """Return True for a dependency that is neither made by a stage nor a checkpoint that params.yaml names."""
    return path.partition("/")[0] not in TOPS and PurePosixPath(path).name != MANIFEST


def _folder_of(stage: str, digests: Mapping[str, str], size: int) -> str:
    """Return a folder of links as a dependency. DVC's digest of a folder is that of the sorted list of its files."""
    listed = json.dumps([{"md5": digest, "relpath": name} for name, digest in sorted(digests.items())])
    digest = f"{md5(listed.encode(), usedforsecurity=False).hexdigest()}.dir"
    lines = (f"    - path: {FOLDER / stage}", "hash: md5", f"md5: {digest}", f"size: {size}", f"nfiles: {len(digests)}")
    return "\n      ".join(lines) + "\n"
