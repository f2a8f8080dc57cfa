"""The raw files that prepared data was made from, where this machine has them: in a mirror, or in the hub's cache."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dagrpo.errors import UserError
from dagrpo.files import read_object
from dagrpo.freshness.made import Made
from dagrpo.provenance.records import are_digests

CARD = "card.json"


def raw_files(made: Made) -> Iterator[tuple[str, str, Path | None]]:
    """Name, digest and place of each raw file behind an execution of the stage prepare; no place: it is not here."""
    for path in made.outputs:
        if Path(path).name != CARD or not Path(path).is_file():
            continue
        try:
            card = read_object(Path(path))
        except UserError:  # told as a changed output
            continue
        if not are_digests(card.get("raw")):
            continue
        for name, digest in card["raw"].items():
            yield f"{card.get('source')}: {name}", digest, _place(card, name, made.params)


def _place(card: Mapping[str, Any], name: str, params: Mapping[str, Any]) -> Path | None:
    if card.get("origin") == "mirror":
        mirror = params.get("data", {}).get("mirror")
        place = Path(mirror, name) if isinstance(mirror, str) else None
        return place if place is not None and place.is_file() else None
    return _in_cache(str(card.get("source")), name, card.get("revision"))


def _in_cache(repository: str, name: str, revision: object) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, name, revision=str(revision), repo_type="dataset")
    except HFValidationError:  # a generator's source is no repository
        return None
    return Path(found) if isinstance(found, str) else None
