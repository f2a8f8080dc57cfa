"""Shell completion of arguments and options.

Quick, as it runs at every press of a key: most of it lists folders.
"""

from collections.abc import Iterable
from pathlib import Path

import typer

from dagrpo.config.places import KINDS, PRESETS, presets_of
from dagrpo.config.scripts.table import presets as of_scripts


def experiments(incomplete: str) -> list[str]:
    """List the experiments that have results in this folder."""
    return _beginning(incomplete, (path.name for path in Path("results").glob("*/")))


def presets(incomplete: str) -> list[str]:
    """List the presets of this folder, and params.yaml if it exists."""
    names = {name for kind in KINDS for name in presets_of(kind)} | set(of_scripts(PRESETS))
    return _beginning(incomplete, names | {path.name for path in Path().glob("params.yaml")})


def hardware(incomplete: str) -> list[str]:
    """List the presets of hardware of this folder, and none."""
    return _beginning(incomplete, ["none", *presets_of("hardware")])


def evaluated_tasks(context: typer.Context, incomplete: str) -> list[str]:
    """List the tasks that the command's run was evaluated on; those of every run, if it names none."""
    return _beginning(incomplete, (path.name for path in Path("results").glob(f"{_run(context)}/runs/*/eval/*/")))


def seeds(context: typer.Context, incomplete: str) -> list[str]:
    """List the seeds of the command's run; those of every run, if it names none."""
    folders = Path("results").glob(f"{_run(context)}/runs/seed_*/")
    return _beginning(incomplete, (path.name.removeprefix("seed_") for path in folders))


def tasks(incomplete: str) -> list[str]:
    """List every task. Importing them takes a second."""
    from dagrpo.data.task import TASKS

    return _beginning(incomplete, TASKS.names())


def gpus(incomplete: str) -> list[str]:
    """List the GPUs with a data sheet here, in small letters if the word begins so, without blanks, which a shell would want quoted."""
    from dagrpo.utils.gpu_specs import GPUS

    names = [gpu.name.replace(" ", "-") for gpu in GPUS]
    return _beginning(incomplete, [name.lower() for name in names] if incomplete.islower() else names)


def formats(incomplete: str) -> list[str]:
    """List the formats of checkpoints."""
    from dagrpo.checkpoints.formats import FORMATS

    return _beginning(incomplete, ["hf", *FORMATS.names()])


def sweeps(incomplete: str) -> list[str]:
    """Complete the name of a sweep."""
    from dagrpo.config.sweeps import known

    return _beginning(incomplete, known())


def _run(context: typer.Context) -> str:
    """Return the command's first argument; without one, a pattern that every run matches."""
    return context.params.get("run") or next(iter(context.args), "*")  # an option without its value leaves it unparsed


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
