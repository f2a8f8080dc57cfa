"""Command `dagrpo reproduce`."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

FOLDER = Path("reproduced")  # of params files


def reproduce(
    crate: Annotated[Path, typer.Argument(help="folder of `dagrpo crate`, or of a model of `dagrpo publish`")],
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="print what would run, and run nothing")] = False,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a parameter in the place of the crate's, such as a path here"),
    ] = None,
    cores: Annotated[str, typer.Option(help="cores for Snakemake, a number or `all`")] = "all",
) -> None:
    """Run the experiment of a crate again, and say what is equal to the byte, what within its interval, what not, and why.

    The run is an override run, NAME~reproduced, of parameters in reproduced/NAME.yaml: params.yaml and its results stay as they are.
    """
    from dagrpo.cli.reproduce.parameters import parameters
    from dagrpo.cli.reproduce.terminal import print_reproduction
    from dagrpo.config.documents import params_yaml
    from dagrpo.config.project import require_own_code
    from dagrpo.config.schema import read_params
    from dagrpo.pipeline.crate.reading import read_crate
    from dagrpo.pipeline.override_runs import PARAMS
    from dagrpo.utils.files import write_text

    require_own_code()
    recorded = read_crate(crate)
    params = parameters(recorded, crate, read_params(PARAMS), given or ())
    file = FOLDER / f"{recorded.experiment}.yaml"
    write_text(file, params_yaml(params))
    typer.echo(f"{recorded.experiment} of the crate runs as {params.experiment.name}, with {file}; {_needs(params)}.")
    command = ["snakemake", "--cores", cores, *(["-n"] if dry_run else []), "target", "--config", f"params={file}"]
    typer.echo(f"    {shlex.join(command)}")
    done = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    if done or dry_run:
        raise typer.Exit(done)
    if not print_reproduction(recorded, params.experiment.name):
        raise typer.Exit(1)


def _needs(params: "Params") -> str:
    from dagrpo.config.overlay import flat
    from dagrpo.core.escape import one_line
    from dagrpo.data.task import get_task

    models = {value for key, value in flat(params.model_dump()).items() if key.endswith(".repository") and value}
    hub = [f"the model {one_line(each, 200)}" for each in sorted(models)]
    sources = {source.repository for name in params.experiment.tasks if (source := get_task(name).source) is not None}
    data = [f"the data {each}" for each in sorted(sources)]
    mirror = params.data.mirror
    from_hub = [*hub, *(data if mirror is None else [])]
    words = [f"{', '.join(from_hub)} from the hub"] if from_hub else []
    words += [f"{', '.join(data)} from {mirror} (data.mirror)"] if data and mirror is not None else []
    return " and ".join(["it needs " + words[0], *words[1:]]) if words else "it needs nothing from elsewhere"
