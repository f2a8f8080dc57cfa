"""Commands `dagrpo crate` and `dagrpo publish`: a finished experiment for others."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shared import Finished, complete_experiments, complete_seeds
from dagrpo.core.errors import UserError
from dagrpo.utils.console import size
from dagrpo.utils.files import atomic_folder, copy

if TYPE_CHECKING:
    from dagrpo_publish.repositories import Repository

KINDS = HUB, FOLDER = ("hub", "folder")


def crate(
    experiment: Finished,
    to: Annotated[Path | None, typer.Option("--to", help="folder to write; by default EXPERIMENT.crate")] = None,
) -> None:
    """Write a finished experiment as a Workflow Run RO-Crate: each action with its parameters, digests, times and environment."""
    from dagrpo_publish.crate.finished import read_finished
    from dagrpo_publish.crate.writing import write_crate

    folder = to or Path(f"{experiment}.crate")
    if folder.exists():
        raise UserError(f"{folder} exists: remove it, or name another folder with --to.")
    finished = read_finished(experiment)
    write_crate(finished, folder)
    again = f"`dagrpo reproduce {folder}` runs them again, also on another machine"
    typer.echo(f"Written: {folder}, {len(finished.records)} actions. {again}.")


def publish(
    run: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="a finished experiment; EXPERIMENT@40: its policy of a kept step",
            autocompletion=complete_experiments,
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="folder:PATH, or hub:ORG/NAME")],
    seed: Annotated[
        int | None, typer.Option(help="seed of the policy; by default the first", autocompletion=complete_seeds)
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
    """Write or send the trained policy, or that of a kept step, with its model card and crate, and its rollouts as a data set."""
    from dagrpo.api.policy import opened_policy, split_policy
    from dagrpo_publish.cards import Publication
    from dagrpo_publish.crate.finished import read_finished
    from dagrpo_publish.repositories import repositories, send

    kind, place = _destination(to)
    run, policy = split_policy(run)
    finished = read_finished(run)
    known = finished.params.experiment.seeds
    if seed is not None and seed not in known:
        raise UserError(f"{run} has no seed {seed}: it has {', '.join(map(str, known))}.")
    parent = Path(place).parent
    publication = Publication(
        finished=finished,
        seed=known[0] if seed is None else seed,
        name=Path(place).name,
        organisation=str(parent) if kind == HUB else None,
        license=license,
        with_rollouts=rollouts,
    )
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        if policy:
            restored = stack.enter_context(opened_policy(publication.run, policy))
            publication = replace(publication, policy=policy, restored=restored)
        made = repositories(publication, Path(scratch))
        if kind == HUB and yes:
            typer.echo("\n".join(send(made, str(parent), public=public)))
            return
        typer.echo(_listing(made, parent))
        for repository in made if kind == FOLDER else ():
            with atomic_folder(parent / repository.name) as folder:
                for path, file in repository.files.items():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    copy(file, folder / path)
    note = f"New repositories would be {'public' if public else 'private'}. Nothing is sent without --yes."
    typer.echo("Written; nothing is sent." if kind == FOLDER else note)


def _destination(to: str) -> tuple[str, str]:
    from dagrpo_publish.repositories import require_name

    kind, _, place = to.partition(":")
    if kind not in KINDS or not Path(place).name:
        raise UserError(f"--to {to}: write folder:PATH or hub:ORG/NAME.")
    if kind == HUB:
        require_name(place)
    elif there := [path for path in (place, f"{place}-rollouts") if Path(path).exists()]:
        raise UserError(f"{there[0]} exists: remove it, or name another folder.")
    return kind, place


def _listing(repositories: Sequence["Repository"], parent: Path) -> str:
    lines = []
    for repository in repositories:
        sizes = {path: file.stat().st_size for path, file in repository.files.items()}
        total = size(sum(sizes.values()))
        lines.append(f"{repository.kind} {parent / repository.name}: {len(sizes)} files, {total}")
        for top, paths in groupby(sorted(sizes), lambda path: path.partition("/")[0]):
            inside = [sizes[path] for path in paths]
            count = f"/  {len(inside)} files," if top not in sizes else " "
            lines.append(f"    {top}{count} {size(sum(inside))}")
    return "\n".join(lines)
