"""Command `dagrpo reproduce`: an experiment of another machine, run again and compared."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import PARAMS
from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import flat
from dagrpo.config.project import require_own_code
from dagrpo.config.schema import Params, read_params
from dagrpo.core.escape import one_line
from dagrpo.data.task import get_task
from dagrpo.pipeline.changes.executions import all_records
from dagrpo.report.format import percent
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import write_text
from dagrpo.utils.run_info import read_accounts
from dagrpo_publish.crate.reading import Crate, read_crate
from dagrpo_publish.reproduce.comparison import Reproduction, Verdict, compare
from dagrpo_publish.reproduce.parameters import parameters

FOLDER = Path("reproduced")  # of params files
LONGEST = 300
STYLES = {Verdict.EQUAL: "green", Verdict.WITHIN: "yellow", Verdict.OUTSIDE: "bold red"}


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


def _needs(params: Params) -> str:
    models = {value for key, value in flat(params.model_dump()).items() if key.endswith(".repository") and value}
    hub = [f"the model {one_line(each, 200)}" for each in sorted(models)]
    sources = {source.repository for name in params.experiment.tasks if (source := get_task(name).source) is not None}
    data = [f"the data {each}" for each in sorted(sources)]
    mirror = params.data.mirror
    from_hub = [*hub, *(data if mirror is None else [])]
    words = [f"{', '.join(from_hub)} from the hub"] if from_hub else []
    words += [f"{', '.join(data)} from {mirror} (data.mirror)"] if data and mirror is not None else []
    return " and ".join(["it needs " + words[0], *words[1:]]) if words else "it needs nothing from elsewhere"


def print_reproduction(crate: Crate, experiment: str) -> bool:
    """Print the comparison of a crate with a finished run of it; return False if a score lies outside its interval."""
    records = all_records(experiment)
    accounts = read_accounts(Path("logs", experiment), [each.provenance for each in records])
    trained = [each.provenance for each in records if each.stage == "train" and each.provenance in accounts]
    facts = dict(accounts[trained[0]].facts) if trained else {}
    result = compare(crate, records, experiment, facts)
    console = plain_console()
    console.print(_stages(result))
    console.print(_scores(result))
    for line in explanations(result):
        console.print(one_line(line, LONGEST))
    if not result.scores:
        console.print("No score could be compared: the crate has none of the tasks that were evaluated here.")
    return bool(result.scores) and all(each.verdict != Verdict.OUTSIDE for each in result.scores)


def _stages(result: Reproduction) -> Table:
    table = Table("stage", "outputs", title="Files", title_justify="left")
    for each in result.stages:
        text = "equal to the byte" if each.is_equal else f"{each.equal} of {each.outputs} equal"
        text += ", the difference begins here" if each.begins else ""
        table.add_row(one_line(each.what, LONGEST), Text(text, "green" if each.is_equal else "yellow"))
    return table


def _scores(result: Reproduction) -> Table:
    table = Table("score", "recorded", "here", "", title="Scores", title_justify="left")
    for each in result.scores:
        recorded = f"{percent(each.recorded)} ({100 * each.low:.1f} to {100 * each.high:.1f})"
        verdict = Text(each.verdict, STYLES[each.verdict])
        table.add_row(one_line(each.name, LONGEST), recorded, percent(each.value), verdict)
    return table


def explanations(result: Reproduction) -> list[str]:
    """Return what is equal, and where and why the rest differs, in sentences."""
    if all(each.is_equal for each in result.stages):
        return ["Everything is equal to the byte; the report, which has the name of its experiment, is not compared."]
    lines = []
    for each in result.stages:
        if each.begins:
            reasons = "; ".join(each.reasons)
            lines.append(f"{each.what}: {reasons or 'no recorded difference of parameters, code or software'}.")
    lines += [f"Machine: {'; '.join(result.machine)}."] if result.machine else []
    lines.append(
        "Other processors, GPUs, threads or versions round sums otherwise; docs/exactness.md says what keeps each bit."
    )
    return lines
