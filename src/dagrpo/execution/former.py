"""What a stage made before stays, should it fail now after it has replaced a part of that.

Snakemake puts the files back that the rules declare; of a checkpoint that is its manifest.json. The rest of its folder is
put back here.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dagrpo.files import link_or_copy, replace_folder, unshare
from dagrpo.listing import MANIFEST

DECLARED = frozenset({MANIFEST, "provenance.json"})


@contextmanager
def former_outputs_kept(outputs: Iterable[Path]) -> Iterator[None]:
    """Around a stage's work. Its outputs are made files of their own first: others may have them as hard links."""
    outputs = list(outputs)
    for path in outputs:
        unshare(path)
    folders = [path.parent for path in outputs if path.name == MANIFEST]
    for folder in folders:
        shutil.rmtree(_beside(folder), ignore_errors=True)  # of a run that was killed
    kept = {folder: _keep(folder) for folder in folders if (folder / MANIFEST).exists()}
    try:
        yield
    except BaseException:
        for folder, copy in kept.items():
            replace_folder(copy, folder)
        raise
    finally:
        for copy in kept.values():
            shutil.rmtree(copy, ignore_errors=True)


def _keep(folder: Path) -> Path:
    """The folder's files under a second name beside it; those that Snakemake writes to as copies."""
    copy = _beside(folder)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        second = copy / file.relative_to(folder)
        second.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copyfile if file.name in DECLARED else link_or_copy)(file, second)
    return copy


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.kept")
