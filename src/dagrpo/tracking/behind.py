"""What lies behind a stage's inputs, of which MLflow is to know: the policy and the problems that completions are of."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dagrpo.errors import UserError
from dagrpo.files import read_object

COMPLETIONS = "completions.parquet"
PROVENANCE = "completions.provenance.json"  # beside them
NAMES = ("manifest.json", "test.parquet")


def behind(inputs: Iterable[str]) -> dict[str, str]:
    """{path: sha256} of what completions among the inputs were made from; nothing where no record says so."""
    found: dict[str, str] = {}
    for path in inputs:
        if Path(path).name == COMPLETIONS:
            found |= _inputs_of(Path(path).with_name(PROVENANCE))
    return {path: digest for path, digest in found.items() if Path(path).name in NAMES}


def _inputs_of(provenance: Path) -> dict[str, str]:
    try:
        inputs: dict[str, Any] = read_object(provenance)["inputs"]
        return {str(path): str(digest) for path, digest in inputs.items()}
    except (OSError, UserError, KeyError, TypeError, AttributeError):  # gone or damaged: the record goes without
        return {}
