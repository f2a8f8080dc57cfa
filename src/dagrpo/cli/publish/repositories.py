"""Files of a publication: of the model, and of its rollouts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dagrpo.checkpoints.manifest import verify
from dagrpo.cli.publish.cards import Publication, model_card, rollouts_card
from dagrpo.cli.publish.tables import write_evaluation, write_rollouts
from dagrpo.core.errors import UserError
from dagrpo.pipeline.crate.folder import require_no_secret, write_crate
from dagrpo.pipeline.crate.reading import INSIDE
from dagrpo.utils.files import write_text

CARD = "README.md"
NOT_PUBLISHED = ("origin.json",)  # names paths of this machine
TEXTS = (".json", ".jinja", ".md", ".txt", ".yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One repository of the hub, before it is sent."""

    kind: Literal["model", "dataset"]
    name: str  # after the organisation, and of its folder
    files: Mapping[str, Path]  # path in the repository -> file of this machine


def repositories(publication: Publication, scratch: Path) -> list[Repository]:
    """Write what is not there yet to `scratch`, and return what is to be published, the data set first.

    Raises UserError if a file was changed since its stage made it, or holds a secret.
    """
    model = Repository(kind="model", name=publication.name, files=dict(_model_files(publication, scratch / "model")))
    if not publication.with_rollouts:
        return [model]
    files = dict(_rollout_files(publication, scratch / "rollouts"))
    return [Repository(kind="dataset", name=publication.rollouts_name, files=files), model]


def _model_files(publication: Publication, scratch: Path) -> Iterator[tuple[str, Path]]:
    manifest = verify(publication.checkpoint)
    names = [name for name in manifest.files if name not in NOT_PUBLISHED and not name.endswith(".py")]
    if CARD in names:
        raise UserError(f"{publication.checkpoint} has a file {CARD}, the place of the card: export the policy again.")
    require_no_secret(publication.checkpoint, [name for name in names if name.endswith(TEXTS)])
    write_crate(publication.finished, scratch / INSIDE)
    write_text(scratch / CARD, model_card(publication))
    require_no_secret(scratch, [CARD])
    yield from ((name, publication.checkpoint / name) for name in names)
    yield from _all_of(scratch)


def _rollout_files(publication: Publication, scratch: Path) -> Iterator[tuple[str, Path]]:
    write_rollouts(publication, scratch / "rollouts")
    for task in publication.tasks:
        write_evaluation(publication, task, scratch / "evaluation")
    write_text(scratch / CARD, rollouts_card(publication))
    require_no_secret(scratch, [CARD])
    yield from _all_of(scratch)


def _all_of(folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file())
