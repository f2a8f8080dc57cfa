"""Command `dagrpo audit`."""

import random
import secrets
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dagrpo.cli.shared import Finished, Seed, columns, print_json
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.user_code import only_modules
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import write_json
from dagrpo.utils.portable import compute_portably
from dagrpo.utils.tempdirs import temporary_folder
from dagrpo_replay.audit.checks import Asked, Check, State, naming_errors
from dagrpo_replay.command import STEPS, restart_portably, steps_of

if TYPE_CHECKING:
    from dagrpo_publish.crate.finished import Finished as FinishedExperiment

LONGEST = 400
REMEDY = "read it, and if you want to run it, add --trusted"
STYLES = {"differs": "bold red", "not checked": "yellow", "within": "cyan", "equal": "green"}


def audit(
    experiment: Finished,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="share of the steps, and of the test problems, to derive again")
    ] = 0.01,
    steps: Annotated[str | None, typer.Option(help=f"{STEPS}, in the place of a share of them")] = None,
    draw: Annotated[
        str | None, typer.Option(help="any text, which decides the steps that are drawn; by default a new one")
    ] = None,
    seed: Seed = None,
    states: Annotated[
        bool, typer.Option("--states", help="begin at saved states: faster, and their weights are not derived")
    ] = False,
    sft: Annotated[bool, typer.Option("--sft", help="run supervised fine-tuning again, too")] = False,
    trusted: Annotated[
        bool,
        typer.Option("--trusted", help="import modules and run programs that its parameters name: you have read them"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the checks as JSON, for programs")] = False,
) -> None:
    """Derive an experiment again, from raw rows to scores, a share of its samples included; exit code 1 if anything differs."""
    from dagrpo_publish.crate.finished import AUDITS, read_finished

    text = draw or secrets.token_hex(4)
    if not text.isprintable() or "`" in text:
        raise UserError("--draw has a backtick, or a character that cannot be printed: crate and model card quote it.")
    numbers = None if steps is None else steps_of(steps)
    with nullcontext() if trusted else only_modules(_refuse):
        finished = read_finished(experiment)
    if not trusted:
        _require_nothing_run(finished)
    seeds = finished.params.experiment.seeds
    if seed is not None and seed not in seeds:
        raise UserError(f"--seed {seed}: {experiment} has the seeds {', '.join(map(str, seeds))}: name one of them.")
    is_portable = any(record.environment.get("arithmetic") == "portable" for record in finished.records)
    restart_portably(is_portable)
    compute_portably(is_portable)
    AUDITS.mkdir(parents=True, exist_ok=True)
    with temporary_folder(AUDITS, "audit") as scratch:
        dice = random.Random(text)
        asked = Asked(share=share, steps=numbers, dice=dice, states=states, sft=sft, scratch=scratch.absolute())
        checks = [*_checks(finished, tuple(seeds) if seed is None else (seed,), asked)]
    extent = ("--share", f"{share:g}") if steps is None else ("--steps", "".join(steps.split()))
    scope = () if seed is None else ("--seed", str(seed))
    switches = [name for name, is_on in (("--states", states), ("--sft", sft)) if is_on]
    command = shlex.join(["dagrpo", "audit", experiment, *extent, *scope, *switches, "--draw", text])
    totals = Counter(check.state for check in checks)
    result = f"{command}: {', '.join(f'{totals[state]} {state}' for state in State if totals[state])}"
    left = dict.fromkeys(f"{each.where}, {each.what}" for each in checks if each.state is State.UNCHECKED)
    result += one_line(f" ({'; '.join(left)})", 4 * LONGEST).replace("`", "'") if left else ""
    record = {"records": finished.digest, "result": result, "checks": [asdict(check) for check in checks]}
    write_json(AUDITS / f"{experiment}.json", record)
    if as_json:
        print_json(record["checks"])
    else:
        _print(checks, result)
    if any(check.state == "differs" for check in checks):
        raise typer.Exit(1)


def _require_nothing_run(finished: "FinishedExperiment") -> None:
    """Raise UserError if an audit would run code, or read places, that the author of the records has named."""
    from dagrpo.config.selection import named_code
    from dagrpo_publish.crate.finished import recorded_params
    from dagrpo_publish.reproduce.parameters import require_nothing_outside

    require_nothing_outside(recorded_params(finished.records, oracles=False), (), finished.name, f"{REMEDY}.")
    kinds = named_code(finished.params, finished.params.experiment.tasks).values()
    for module in (module for kind in kinds for code in kind for module in code.modules):
        _refuse(module)


def _refuse(module: str) -> None:
    raise UserError(f"The experiment names code, {one_line(module, LONGEST)}, which an audit would run: {REMEDY}.")


def _checks(finished: "FinishedExperiment", seeds: tuple[int, ...], asked: Asked) -> Iterator[Check]:
    from dagrpo_replay.audit.stages import check_evaluations, check_stages

    yield from naming_errors("records", _check_files(finished.name))
    yield from naming_errors("stages", check_stages(finished, asked))
    for seed in seeds:
        yield from naming_errors(f"train, seed {seed}", check_run(finished, seed, asked))
    yield from naming_errors("evaluations", check_evaluations(finished, seeds, asked))


def _check_files(experiment: str) -> Iterator[Check]:
    from dagrpo_replay.verify import State, verify_files

    found = verify_files(experiment)
    faults = [f"{v.path} ({v.description}) is {v.state}" for v in found if v.state in (State.MISSING, State.CHANGED)]
    whole = sum(each.state is State.WHOLE for each in found)
    yield Check.of("records", "files", faults, f"{whole:,} of {len(found):,} files have their digests")


def check_run(finished: "FinishedExperiment", seed: int, asked: Asked) -> Iterator[Check]:
    """Audit the training of one seed; name the kept policies whose weights were not derived."""
    from dagrpo.checkpoints.kept import steps
    from dagrpo_replay.audit.run import KEPT, KEPT_POLICY

    folder, where, seen = Path("results", finished.name, "runs", f"seed_{seed}"), f"train, seed {seed}", set[str]()
    for check in naming_errors(where, _check_run(finished, folder, seed, asked)):
        seen.add(check.what)
        yield check
    if left := [str(step) for step in steps(folder / KEPT) if f"{KEPT_POLICY} {step}" not in seen]:
        reason = f"their weights, and so their completions, are input: name step {left[-1]} or a later one (--steps)"
        yield Check.unchecked(where, f"kept policies of steps {', '.join(left)}", reason)


def _check_run(finished: "FinishedExperiment", folder: Path, seed: int, asked: Asked) -> Iterator[Check]:
    from dagrpo.utils.determinism import compute_deterministically
    from dagrpo.utils.distributed import process_group
    from dagrpo.utils.provenance import PROVENANCE
    from dagrpo_replay.audit.run import audited, check_chain, check_steps, whole_steps
    from dagrpo_replay.audit.stages import check_files
    from dagrpo_replay.recorded_run import read_run

    where = f"train, seed {seed}"
    record = next(each for each in finished.records if each.provenance == folder / "policy" / PROVENANCE)
    if (backend := record.params["training"]["backend"]["name"]) != "fsdp":
        yield Check.unchecked(where, "steps", f"the backend {backend} computes them in another way")
        return
    recorded = read_run(folder)
    one = audited(recorded, record, asked.scratch / f"seed_{seed}")
    yield from naming_errors(where, check_files(one))
    chain, prompts = check_chain(one)
    yield from chain
    if chain[0].state is State.DIFFERS:
        return
    if not asked.states:
        recorded = replace(recorded, state=asked.scratch / "none")
    possible = whole_steps(recorded)
    drawn = asked.drawn(possible)
    chosen = drawn if asked.steps is None else [*asked.steps]
    if len(possible) < recorded.steps:
        reason = f"runtime.keep_rollouts has left tokens of {recorded.steps - len(possible)} steps out"
        yield Check.unchecked(where, "tokens of other steps", reason)
    if not chosen or not {*chosen} <= {*possible}:
        yield Check.unchecked(where, "steps", f"there are no tokens of the steps {', '.join(map(str, chosen))}")
        return
    computed = recorded.digests[chosen[-1]].computed
    if computed.processes > 1:
        reason = f"{computed.processes} processes trained it, an audit is one: `dagrpo replay` computes updates again"
        yield Check.unchecked(where, "steps", reason)
        return
    compute_deterministically(recorded.rollout.deterministic)
    with process_group(computed.threads, deterministic=recorded.rollout.deterministic) as world:
        yield from check_steps(replace(one, recorded=recorded), chosen, prompts, world)
    if recorded.training.evaluate_every:
        yield Check.unchecked(where, "held_out.parquet", "answers of policies on the way are not derived")


def _print(checks: Sequence[Check], result: str) -> None:
    console = plain_console()
    table = columns("part", "what", "checked", "result", "")
    for each in checks:
        state = Text(each.state.value, STYLES[each.state.value])
        table.add_row(each.where, each.what, each.checked, state, one_line(each.note, LONGEST))
    console.print(table)
    for each in checks:
        for fault in each.faults:
            console.print(Text.assemble((f"{each.where}, {each.what}", "bold red"), f": {one_line(fault, LONGEST)}"))
    console.print(f"{result}.")
