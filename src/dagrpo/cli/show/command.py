"""Command `dagrpo show`: attempts of a step or an evaluation."""

from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shared import Seed, Which, complete_evaluated, complete_experiments
from dagrpo.cli.show import place as places
from dagrpo.cli.show.place import Place
from dagrpo.core.errors import UserError
from dagrpo.utils.console import VisibleConsole

NO_TOKENIZER = "The run has no tokenizer.json, so its tokens cannot be shown: this is the text."


def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="an experiment, the folder of a seed, or a parquet file",
            autocompletion=complete_experiments,
        ),
    ],
    step: Annotated[int | None, typer.Option(help="training step; by default the last one")] = None,
    best: Annotated[int, typer.Option(min=0, help="number of attempts with the highest rewards")] = 3,
    worst: Annotated[int, typer.Option(min=0, help="number of attempts with the lowest rewards")] = 3,
    seed: Seed = None,
    task: Annotated[
        str | None,
        typer.Option(help="show an evaluation of this task instead of training", autocompletion=complete_evaluated),
    ] = None,
    which: Annotated[Which, typer.Option(help="policy of the evaluation: base or trained")] = "trained",
    prompt: Annotated[str | None, typer.Option(help="show only problems whose prompt contains this text")] = None,
    full: Annotated[bool, typer.Option("--full", help="print prompts, thinking, calls and results in full")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="print the tokens, and mark those that are trained on")
    ] = False,
) -> None:
    """Show the best and the worst attempts of a training step or of an evaluation, turn by turn."""
    from dagrpo.cli.show import terminal
    from dagrpo.cli.show.attempts import choose, pictures

    place = _place(run, step, seed, task, which)
    chosen = choose(place, best, worst, prompt, full=full)
    decode = terminal.decoder(place) if tokens else None
    console = VisibleConsole(highlight=False, markup=False, emoji=False)
    console.print(terminal.heading(chosen, str(place.attempts), coloured=console.is_terminal))
    if tokens and decode is None:
        console.print(NO_TOKENIZER)
    for title, attempt in chosen.titled:
        location = pictures(place, attempt.read.task, attempt.read.problem_index)
        console.print(terminal.render(title, attempt, full=full, decode=decode, pictures=location))


def _place(run: str, step: int | None, seed: int | None, task: str | None, which: Which) -> Place:
    if run.endswith(".parquet"):
        return places.single_file(Path(run))
    folder = places.run_folder(run, seed)
    if task is None:
        return places.training_step(folder, step)
    if step is not None:
        raise UserError("--step is of training, --task of an evaluation: give one of the two.")
    return places.evaluation(folder, task, which)
