"""Options of several commands, their shell completion, and the forms of output.

Completion is quick, as it runs at every press of a key: most of it lists folders.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from dagrpo.config.places import KINDS, PRESETS, presets_of
from dagrpo.config.scripts import presets as of_scripts
from dagrpo.config.sweeps import known
from dagrpo.data.task import TASKS

PARAMS = Path("params.yaml")
Which = Literal["base", "trained"]


def print_json(value: object) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(value, indent=2))


def columns(*headings: str) -> Table:
    """Return a table without lines, whose long cells are folded; its headings are shown if there is one that is not empty."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that lists the names with a given beginning."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(incomplete, names())

    return complete


def _list_presets() -> set[str]:
    names = {name for kind in KINDS for name in presets_of(kind)} | set(of_scripts(PRESETS))
    return names | {path.name for path in Path().glob("params.yaml")}


def _list_formats() -> list[str]:
    from dagrpo.checkpoints.formats import FORMATS

    return ["hf", *FORMATS.names()]


complete_experiments = _complete(lambda: (path.name for path in Path("results").glob("*/")))  # that have results here
complete_presets = _complete(_list_presets)
complete_hardware = _complete(lambda: ["none", *presets_of("hardware")])
complete_tasks = _complete(TASKS.names)
complete_formats = _complete(_list_formats)
complete_sweeps = _complete(known)


def complete_evaluated(context: typer.Context, incomplete: str) -> list[str]:
    """List the tasks that the command's run was evaluated on; those of every run, if it names none."""
    return _beginning(incomplete, (path.name for path in Path("results").glob(f"{_run(context)}/runs/*/eval/*/")))


def complete_seeds(context: typer.Context, incomplete: str) -> list[str]:
    """List the seeds of the command's run; those of every run, if it names none."""
    folders = Path("results").glob(f"{_run(context)}/runs/seed_*/")
    return _beginning(incomplete, (path.name.removeprefix("seed_") for path in folders))


def complete_gpus(incomplete: str) -> list[str]:
    """List the GPUs with a data sheet here, in small letters if the word begins so, without blanks, which a shell would want quoted."""
    from dagrpo.utils.gpu_specs import GPUS

    names = [gpu.name.replace(" ", "-") for gpu in GPUS]
    return _beginning(incomplete, [name.lower() for name in names] if incomplete.islower() else names)


def _run(context: typer.Context) -> str:
    """Return the command's first argument; without one, a pattern that every run matches."""
    return context.params.get("run") or next(iter(context.args), "*")  # an option without its value leaves it unparsed


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="an experiment, or the folder of a seed", autocompletion=complete_experiments),
]
Finished = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="a finished experiment", autocompletion=complete_experiments)
]
Seed = Annotated[int | None, typer.Option(help="seed, if the experiment has several", autocompletion=complete_seeds)]
SeedToTrain = Annotated[int | None, typer.Option(help="one of experiment.seeds; by default the first")]
Html = Annotated[Path | None, typer.Option(help="also write an HTML page to this file")]
