"""Command `dagrpo publish`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shell_completion import experiments, seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagrpo.cli.publish.repositories import Repository

HUB, FOLDER = "hub:", "folder:"
MOST_LISTED = 12  # files of one folder


def publish(
    run: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="a finished experiment", autocompletion=experiments)],
    to: Annotated[str, typer.Option("--to", help="folder:PATH, or hub:ORG/NAME")],
    seed: Annotated[
        int | None, typer.Option(help="seed of the policy; by default the first", autocompletion=seeds)
    ] = None,
    license: Annotated[
        str | None, typer.Option("--license", help="licence of the cards, as the hub names it, such as apache-2.0")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="let everybody read a new repository of the hub")] = False,
    rollouts: Annotated[bool, typer.Option("--rollouts/--no-rollouts", help="also the rollouts as a data set")] = True,
    yes: Annotated[
        bool, typer.Option("--yes", help="send to the hub; without it what would be sent is listed")
    ] = False,
) -> None:
    """Write or send the trained policy with its model card and crate, and its rollouts as a data set."""
    from dagrpo.cli.publish.cards import Publication
    from dagrpo.cli.publish.hub import require_name, send
    from dagrpo.cli.publish.repositories import repositories
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.crate.finished import read_finished
    from dagrpo.utils.files import copy

    organisation, name = None, ""
    if to.startswith(HUB):
        require_name(to.removeprefix(HUB))
        organisation, name = to.removeprefix(HUB).split("/")
    elif to.startswith(FOLDER) and (name := Path(to.removeprefix(FOLDER)).name):
        if Path(to.removeprefix(FOLDER)).exists():
            raise UserError(f"{to.removeprefix(FOLDER)} exists: remove it, or name another folder.")
    else:
        raise UserError(f"--to {to}: write folder:PATH or hub:ORG/NAME.")
    finished = read_finished(run)
    known = finished.params.experiment.seeds
    if seed is not None and seed not in known:
        raise UserError(f"{run} has no seed {seed}: it has {', '.join(map(str, known))}.")
    publication = Publication(
        finished=finished,
        seed=known[0] if seed is None else seed,
        name=name,
        organisation=organisation,
        license=license,
    )
    with tempfile.TemporaryDirectory() as scratch:
        made = repositories(publication, Path(scratch), with_rollouts=rollouts)
        if organisation is None:
            target = Path(to.removeprefix(FOLDER))
            for repository in made:
                for path, file in repository.files.items():
                    place = target.with_name(repository.name) / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy(file, place)
            typer.echo(_listing(made, str(target.parent)))
            typer.echo("Written; nothing is sent.")
        elif not yes:
            typer.echo(_listing(made, organisation))
            typer.echo(f"{'Public' if public else 'Private'} if new. Nothing is sent without --yes.")
        else:
            typer.echo("\n".join(send(made, organisation, public=public)))


def _listing(repositories: "Sequence[Repository]", parent: str) -> str:
    """Return the files of each repository with their sizes, many of one folder as one line."""
    lines = []
    for repository in repositories:
        lines.append(
            f"{repository.kind} {parent}/{repository.name}: {len(repository.files)} files, {_size(repository.bytes)}"
        )
        folders: dict[str, list[Path]] = {}
        for path, file in repository.files.items():
            folders.setdefault(str(Path(path).parent), []).append(file)
        for path, file in repository.files.items():
            if path.startswith("crate/") or len(folders[str(Path(path).parent)]) > MOST_LISTED:
                continue
            lines.append(f"    {path}  {_size(file.stat().st_size)}")
        crate = [file for path, file in repository.files.items() if path.startswith("crate/")]
        many = {
            name: files for name, files in folders.items() if len(files) > MOST_LISTED and not name.startswith("crate")
        }
        for name, files in {**({"crate": crate} if crate else {}), **many}.items():
            lines.append(f"    {name}/  {len(files)} files, {_size(sum(file.stat().st_size for file in files))}")
    return "\n".join(lines)


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"
