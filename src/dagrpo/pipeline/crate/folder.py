"""Folder of a crate: metadata, and files without texts of problems."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dagrpo.config.documents import params_yaml
from dagrpo.config.places import SNAKEFILE
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo.pipeline.crate.finished import Finished
from dagrpo.pipeline.crate.graph import METADATA, PARAMS, WORKFLOW, metadata
from dagrpo.pipeline.raw_inputs import CARD
from dagrpo.utils.files import atomic_folder, copy, sha256_of, write_json, write_text
from dagrpo.utils.run_info import SUFFIX

HELD = (
    ".json",
    ".csv",
    ".md",
    ".svg",
)  # figures and records; tables and pages have problems and completions, checkpoints are large
LARGEST = 16 << 20  # bytes of a file


def write_crate(finished: Finished, folder: Path) -> None:
    """Write the crate of an experiment, whole or not at all. Raises UserError if a file has changed, or holds a secret."""
    sources = {path.as_posix(): path for path in _held(finished)}
    with atomic_folder(folder) as temporary:
        for name, source in sources.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            copy(source, temporary / name)
        copy(Path(SNAKEFILE), temporary / WORKFLOW)
        write_text(temporary / PARAMS, params_yaml(finished.params))
        names = (WORKFLOW, PARAMS, *sources)
        require_no_secret(temporary, names)
        held = {name: sha256_of(temporary / name) for name in names}
        _require_unchanged(finished, held)
        write_json(temporary / METADATA, metadata(finished, held, {n: (temporary / n).stat().st_size for n in names}))
        require_no_secret(temporary, (METADATA,))


def _held(finished: Finished) -> Iterator[Path]:
    for record in finished.records:
        yield record.provenance
        for path in map(Path, record.outputs):
            if path.suffix in HELD and path.name != CARD and path.stat().st_size <= LARGEST:
                yield path
    written = {sha256_of(each.provenance) for each in finished.records}
    for account in sorted(Path("logs", finished.name).rglob(f"*{SUFFIX}")):
        if any(digest in account.read_text() for digest in written):
            yield account


def _require_unchanged(finished: Finished, held: dict[str, str]) -> None:
    for record in finished.records:
        for path, digest in record.outputs.items():
            if held.get(path, digest) != digest:
                raise UserError(
                    f"{path} was changed after {record.what} made it: `dagrpo verify {finished.name}` lists what has changed; "
                    "restore it first."
                )


def require_no_secret(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError if a text file holds a password in an address, or the value of a variable that looks like a secret."""
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        if redacted(text) != text:
            raise UserError(
                f"{name} holds a password, a key or a token, of the environment or in an address, and nothing is written: unset the "
                "variable if it is no secret, or remove the secret from params.yaml and run again."
            )
