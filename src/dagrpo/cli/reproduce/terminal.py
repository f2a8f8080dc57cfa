"""A reproduction on the terminal."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from dagrpo.cli.reproduce.comparison import Reproduction, Verdict, compare
from dagrpo.core.escape import one_line
from dagrpo.pipeline.changes.executions import all_records
from dagrpo.pipeline.crate.reading import Crate
from dagrpo.report.format import percent
from dagrpo.utils.console import plain_console
from dagrpo.utils.run_info import read_accounts

LONGEST = 300
STYLES = {Verdict.EQUAL: "green", Verdict.WITHIN: "yellow", Verdict.OUTSIDE: "bold red"}


def print_reproduction(crate: Crate, experiment: str) -> bool:
    """Print the comparison of a crate with a finished run of it; return False if a score lies outside its interval."""
    records = all_records(experiment)
    accounts = read_accounts(Path("logs", experiment), [each.provenance for each in records])
    facts = next(
        (
            dict(accounts[each.provenance].facts)
            for each in records
            if each.stage == "train" and each.provenance in accounts
        ),
        {},
    )
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
        style = "green" if each.is_equal else "yellow"
        table.add_row(
            one_line(each.what, LONGEST), Text(text + (", the difference begins here" if each.begins else ""), style)
        )
    return table


def _scores(result: Reproduction) -> Table:
    table = Table("score", "recorded", "here", "", title="Scores", title_justify="left")
    for each in result.scores:
        recorded = f"{percent(each.recorded)} ({100 * each.low:.1f} to {100 * each.high:.1f})"
        table.add_row(
            one_line(each.name, LONGEST), recorded, percent(each.value), Text(each.verdict, STYLES[each.verdict])
        )
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
