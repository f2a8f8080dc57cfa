"""`dagrpo plan`: memory, time and disk of an experiment, before any work."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import PARAMS, complete_gpus, complete_presets, print_json
from dagrpo.utils.console import duration, size
from dagrpo_plan.amounts import Item

if TYPE_CHECKING:
    from dagrpo.config.schema import Params
    from dagrpo_plan.memory import StageMemory
    from dagrpo_plan.outcome import Plan
    from dagrpo_plan.times import StageSeconds


def plan(
    presets: Annotated[
        list[str] | None,
        typer.Argument(
            help="names of presets, each applied over the previous one; by default params.yaml",
            autocompletion=complete_presets,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="plan for this type of GPU, such as H100; by default this machine",
            autocompletion=complete_gpus,
        ),
    ] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", min=0.01, help="plan for GPUs with this memory, in GiB")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="fetch a model's config.json from the hub if this machine has none")
    ] = False,
    answer: Annotated[
        int | None,
        typer.Option("--answer", min=1, help="likely tokens of a completion; by default a third of the longest"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: one object, in bytes and seconds")] = False,
) -> None:
    """Estimate the memory, time and disk of an experiment, before any work; exit code 1, with a remedy, if it cannot fit."""
    from dagrpo.config.project import require_own_code
    from dagrpo.core.errors import UserError
    from dagrpo.utils.console import plain_console
    from dagrpo_plan.machine import machine_for
    from dagrpo_plan.outcome import plan_of

    require_own_code()
    plan = plan_of(_params(presets or []), machine_for(gpu, memory), online=online, answer=answer)
    if as_json:
        print_json(asdict(plan))
    else:
        plain_console().print(Group(*render_parts(plan)))
    if plan.refusal is not None:
        raise UserError(plan.refusal)


def _params(presets: list[str]) -> "Params":
    from dagrpo.config.presets import composed, known
    from dagrpo.config.schema import read_params
    from dagrpo.core.errors import UserError, nearest

    if not presets:
        return read_params(PARAMS)
    if len(presets) == 1 and presets[0] not in known() and PARAMS.is_file():
        params = read_params(PARAMS)
        all_names = [*known(), params.experiment.name]
        if params.experiment.name == presets[0]:
            return params
        if not presets[0].endswith(".yaml"):
            raise UserError(f"there is no preset or experiment `{presets[0]}` here: {nearest(presets[0], all_names)}.")
    return composed(presets)


def render_parts(plan: "Plan") -> Iterator[RenderableType]:
    """Yield a plan for a terminal, apart from its refusal, which is raised as an error."""
    yield Text(_first_line(plan), style="bold")
    devices = f"{plan.processes} x {plan.machine}" if plan.processes > 1 else plan.machine
    yield Text.assemble(
        (plan.experiment, "bold"), f"  {plan.parameters:,} parameters, on {devices} with {size(plan.memory)}"
    )
    for stage in plan.stages:
        share = stage.total / plan.memory
        style = "bold red" if share > 1 else "bold green"
        yield Text()
        yield Text.assemble((stage.stage, "bold"), "  ", (size(stage.total), style), f", {share:.0%} of the memory")
        yield _table(stage)
    if plan.times:
        yield Text()
        yield _times(plan.times)
    if len(plan.ways) > 1:
        ways = "; ".join(f"{name}: {duration(seconds)}" for name, seconds in plan.ways.items())
        yield Text(f"A step of training with answers of the likely length, the longest at the limit: {ways}.")
    yield Text()
    yield from _disk(plan.disk, plan.free)
    yield Text()
    yield from (Text(sentence, style="dim") for sentence in plan.basis)
    yield from (Text(sentence, style="yellow") for sentence in plan.notes)


def _first_line(plan: "Plan") -> str:
    """Return time, memory and disk in one line: about 3 h on H100, at most 9 h, 14.0 GiB, 66.0 GiB of disk."""
    memory, disk = max(stage.total for stage in plan.stages), sum(item.bytes for item in plan.disk)
    if plan.likely is None or plan.longest is None:
        time = f"time not known on {plan.machine}"
    else:
        unknown = " and ".join(stage.stage for stage in plan.times if stage.seconds is None)
        without = f" without {unknown} (unknown before `prepare` has run)" if unknown else ""
        time = f"about {duration(plan.likely)} on {plan.machine}, at most {duration(plan.longest)}{without}"
    return f"{time}, {size(memory)}, {size(disk)} of disk"


def _columns(*justified: JustifyMethod) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for each in justified:
        table.add_column(no_wrap=True, justify=each)
    table.add_column(overflow="fold", style="dim")
    return table


def _table(stage: "StageMemory") -> Table:
    table = _columns("left", "right")
    for where, each in (("", stage.on_device), ("in the machine's own memory: ", stage.on_host)):
        for memory, group in groupby(each):
            count = len(list(group))
            times = f" x {count}" if count > 1 else ""
            table.add_row(f"  {where}{memory.what}{times}", size(memory.total * count), "")
            for item in _by_size(memory.items):
                table.add_row(f"    {item.name}", size(item.bytes), item.how)
    return table


def _by_size(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: -item.bytes)


def _disk(items: tuple[Item, ...], free: int) -> Iterator[RenderableType]:
    total = sum(item.bytes for item in items)
    style = "bold red" if total > free else "bold green"
    yield Text.assemble(("disk", "bold"), "  ", (size(total), style), f", {size(free)} are free here")
    table = _columns("left", "right")
    for item in _by_size(items):
        table.add_row(f"  {item.name}", size(item.bytes), item.how)
    yield table


def _times(times: "tuple[StageSeconds, ...]") -> Table:
    table = _columns("left", "left", "left")
    for stage in times:
        seconds = "not known before `prepare` has run" if stage.seconds is None else duration(stage.seconds)
        table.add_row(Text(stage.stage, "bold"), seconds, stage.how, _in_words(stage))
        for name, each in stage.of_a_step.items():
            in_all = duration(stage.runs * (stage.steps or 0) * each)
            table.add_row(f"  {name}", f"  {in_all}", "", f"{duration(each)} a step")
    seconds_known = [stage.seconds for stage in times if stage.seconds is not None]
    if len(seconds_known) == len(times) > 1:
        table.add_row(Text("all", "bold"), duration(sum(seconds_known)), "", "one after the other")
    return table


def _in_words(stage: "StageSeconds") -> str:
    runs = f"{stage.runs} runs" if stage.runs > 1 else ""
    steps = f"{stage.steps:,} steps of {duration(sum(stage.of_a_step.values()))}" if stage.of_a_step else ""
    rate = "" if stage.tokens_per_second is None else f"{stage.tokens_per_second:,.0f} tokens/s in the update"
    return ", ".join(part for part in (runs, steps, rate) if part)
