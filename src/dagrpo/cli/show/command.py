"""Command `dagrpo show`: attempts of a step or an evaluation."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.api.policy import split_policy
from dagrpo.cli.shared import Seed, Which, complete_evaluated, complete_experiments
from dagrpo.core.errors import UserError, nearest
from dagrpo.pipeline.override_runs import TRY
from dagrpo.utils.console import VisibleConsole

RESULTS = Path("results")
STEP = re.compile(r"step_(\d+)\.parquet")
NO_TOKENIZER = "The run has no tokenizer.json, so its tokens cannot be shown: this is the text."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file of attempts, with its scores and its run."""

    attempts: Path  # a rollout table
    scores: Path | None  # of the same attempts, row by row; None: the table has all there is, or nothing is graded
    run: Path | None  # the seed's folder; None: the file is part of no run


def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="an experiment, the folder of a seed, or a parquet file; with --task also EXPERIMENT@40",
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
        return single_file(Path(run))
    run, policy = split_policy(run)
    folder = run_folder(run, seed)
    if task is None and policy is not None:
        raise UserError(f"{run}@... names an evaluated policy: add --task, or choose a training step with --step.")
    if task is None:
        return training_step(folder, step)
    if step is not None:
        raise UserError("--step is of training, --task of an evaluation: give one of the two.")
    return evaluation(folder, task, policy or which)


def run_folder(name: str, seed: int | None, root: Path = RESULTS) -> Path:
    """Return the folder of one seed. `name`: that folder, or an experiment. Raises UserError listing the existing ones."""
    folder = Path(name)
    if (folder / "rollouts").is_dir() or (folder / "eval").is_dir():
        return folder
    runs = folder / "runs" if (folder / "runs").is_dir() else root / name / "runs"
    seeds = sorted(path.name.removeprefix("seed_") for path in runs.glob("seed_*"))
    if not seeds:
        experiments = sorted(path.parent.name for path in root.glob("*/runs"))
        if overrides := [each for each in experiments if each.startswith(f"{folder.name}{TRY}")]:
            raise UserError(
                f"There is no run `{name}`, only override runs of it: give a name of {', '.join(overrides)}."
            )
        if (root / name).is_dir():
            raise UserError(
                f"The experiment `{name}` has no trained step and no evaluation yet: `dagrpo status` says what runs."
            )
        raise UserError(
            f"There is no experiment `{name}` in {root}: {nearest(folder.name, experiments)}. A seed's folder or a parquet file may be "
            "named as well."
        )
    if seed is None and len(seeds) > 1 and "0" not in seeds:
        raise UserError(f"{runs} has the seeds {', '.join(seeds)}: say which with --seed.")
    chosen = str(seed) if seed is not None else "0" if "0" in seeds else seeds[0]
    if chosen not in seeds:
        raise UserError(f"{runs} has no seed {chosen}: it has {', '.join(seeds)}.")
    return runs / f"seed_{chosen}"


def training_step(run: Path, step: int | None) -> Place:
    """Return the rollouts of a step, by default the last one. Raises UserError listing the existing steps."""
    folder = run / "rollouts"
    steps = {int(match.group(1)): path for path in folder.glob("*.parquet") if (match := STEP.fullmatch(path.name))}
    if not steps:
        raise UserError(f"{run} has no rollouts: run the stage train, or name an evaluation with --task.")
    number = max(steps) if step is None else step
    if number not in steps:
        first, last = min(steps), max(steps)
        existing = f"step {first} alone" if first == last else f"the steps {first} to {last}"
        raise UserError(f"{run} has no step {step}: it has {existing}.")
    return Place(attempts=steps[number], scores=None, run=run)


def evaluation(run: Path, task: str, which: str) -> Place:
    """Return the completions of an evaluation, and their scores if any. Raises UserError listing the existing ones."""
    folder = run / "eval" / task / which
    attempts, scores = folder / "completions.parquet", folder / "scores.parquet"
    if not attempts.is_file():
        existing = sorted(
            str(path.parent.relative_to(run / "eval")) for path in run.glob("eval/*/*/completions.parquet")
        )
        hint = f"it has {', '.join(existing)}" if existing else "it has none yet"
        raise UserError(f"{run} has no evaluation {task}/{which}: {hint} (--task and --which choose).")
    return Place(attempts=attempts, scores=scores if scores.is_file() else None, run=run)


def single_file(path: Path) -> Place:
    """Return a rollout table by its path. Raises UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"There is no file {path}: name a step of rollouts/, or a completions.parquet.")
    scores = path.with_name("scores.parquet")
    is_evaluation = path.name == "completions.parquet" and scores.is_file()
    runs = [folder for folder in path.resolve().parents if folder.name.startswith("seed_")]
    return Place(attempts=path, scores=scores if is_evaluation else None, run=runs[0] if runs else None)
