"""`dagrpo status --why`: why a stage would run again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from dagrpo.core.errors import UserError, nearest
from dagrpo.core.escape import one_line
from dagrpo.pipeline.changes.changes import Change, Changes, Kind, changed_lines
from dagrpo.pipeline.changes.executions import (
    ExecutionRecord,
    Today,
    all_records,
    experiments,
    maker_of,
    named,
    stage_and_seed,
)
from dagrpo.pipeline.snakemake_private import is_unfinished
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.provenance import TOPS

MOST_LINES_OF_A_FILE = 12  # of code, shown
LONGEST = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One job that would run again, with its changes."""

    what: str  # "train, seed 0"
    changes: tuple[Change, ...]
    lines: dict[str, tuple[str, ...]]  # changed lines of code files, if git has the former text
    notes: tuple[str, ...]  # messages about changes that no digest shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of one file."""

    file: str
    made_by: str  # "score, seed 0, arithmetic, base"
    own: Reason | None  # None: the stage itself is unchanged
    before: tuple[Reason, ...]  # jobs that come before it, the first of the pipeline first

    @property
    def is_up_to_date(self) -> bool:
        return self.own is None and not self.before


def explain(file: Path) -> Explanation:
    """Find the changes of the stage that makes a file, and of those before it. Raises UserError if no recorded stage made it."""
    record = maker_of(file)
    today = Today.read()
    if record is None:
        raise UserError(_no_maker(file, today))
    changes = Changes(today)
    before = [reason for each in _ancestors(record) if (reason := _reason(each, changes)) is not None]
    return Explanation(file=str(file), made_by=record.what, own=_reason(record, changes), before=tuple(before))


def _no_maker(file: Path, today: Today) -> str:
    selected = [] if today.selected is None else [today.selected.experiment.name]
    names = {*experiments(), *selected}
    name = _experiment(file)
    if str(file) in all_stages():
        made = (
            each.provenance for experiment in selected for each in all_records(experiment) if each.stage == str(file)
        )
        example = next(map(str, made), None)
        return f"{file} is a stage: name a file that it makes" + (f", such as {example}." if example else ".")
    if name in names and len(file.parts) == 1:
        return f"{name} is an experiment: name one of its files, such as results/{name}/report/report.html."
    if name is not None and name not in names:
        return f"There is no experiment `{name}` on record in {', '.join(TOPS)}: {nearest(name, names)}."
    job = stage_and_seed(str(file)) or stage_and_seed(f"{file}/")  # a folder that does not exist yet
    if job is None:
        return f"{file} is not made by a stage: name a file in data/, models/ or results/ of an experiment."
    return (
        f"{file} is on no record: {named(*job, str(file))}, which makes it, has not run to its end here. `snakemake --cores all target` "
        "runs it."
    )


def _experiment(file: Path) -> str | None:
    """Return the experiment of a file's path, or the one that a bare word names; None for any other file."""
    parts = file.parts
    if len(parts) > 1 and parts[0] in TOPS:
        return parts[1]
    return str(file) if len(parts) == 1 and not file.suffix and not file.exists() else None


def _ancestors(record: ExecutionRecord) -> list[ExecutionRecord]:
    """Return every job whose outputs lead to this one, the first of the pipeline first."""
    makers = {path: each for each in all_records(record.experiment) for path in each.outputs}
    ordered: dict[Path, ExecutionRecord] = {}

    def visit(each: ExecutionRecord) -> None:
        for path in each.inputs:
            maker = makers.get(path)
            if maker is not None and maker.provenance not in ordered and maker is not each:
                visit(maker)
                ordered[maker.provenance] = maker

    visit(record)
    ordered.pop(record.provenance, None)
    return list(ordered.values())


def _reason(record: ExecutionRecord, changes: Changes) -> Reason | None:
    own_changes = changes.of(record)
    if not own_changes and not is_unfinished(record.provenance):
        return None
    notes = () if own_changes else ("a run has begun it and has not ended it",)  # a changed one is unfinished, too
    code = {each.name: each.before for each in own_changes if each.kind == Kind.CODE and each.before and each.now}
    lines = {file: tuple(changed_lines(file, digest)) for file, digest in code.items()}
    return Reason(what=record.what, changes=tuple(own_changes), lines=lines, notes=notes)


def render_lines(explanation: Explanation) -> Iterator[Text]:
    """Yield the explanation for a terminal."""
    made_by = f"{one_line(explanation.file, LONGEST)} is made by {explanation.made_by}"
    if explanation.is_up_to_date:
        yield Text(f"{made_by}, which has nothing to do: no parameter, input, output or line of its code has changed.")
        return
    if explanation.own is None:
        yield Text(f"{made_by}. Nothing of its own has changed, but what comes before it would run again:")
    else:
        yield Text(f"{made_by}, which would run again:", style="bold")
        yield from _rendered_reason(explanation.own)
    for reason in explanation.before:
        yield Text(f"{reason.what} comes before it and would run again:", style="bold")
        yield from _rendered_reason(reason)


def _rendered_reason(reason: Reason) -> Iterator[Text]:
    yield from (Text(f"  {note}", style="yellow") for note in reason.notes)
    for change in reason.changes:
        yield Text(f"  {change.kind}: {one_line(str(change), LONGEST)}", style="yellow")
        lines = reason.lines.get(change.name, ())
        for line in lines[:MOST_LINES_OF_A_FILE]:
            is_new = line.partition(": ")[2].startswith("+")
            yield Text(f"    line {one_line(line, LONGEST)}", style="green" if is_new else "red")
        if len(lines) > MOST_LINES_OF_A_FILE:
            yield Text(f"    and {len(lines) - MOST_LINES_OF_A_FILE} more lines", style="dim")
