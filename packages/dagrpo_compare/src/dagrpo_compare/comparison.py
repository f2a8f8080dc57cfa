"""Comparison of experiments: each later one with the first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dagrpo.api.policy import split_policy
from dagrpo.api.results import are_current
from dagrpo.config.overlay import flat
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.trajectory import GREEDY
from dagrpo.evaluation.choice import read_choice
from dagrpo.evaluation.config import CHOSEN
from dagrpo.evaluation.outcomes import values_per_problem
from dagrpo.evaluation.statistics import Floats, Resampling
from dagrpo.pipeline import dag
from dagrpo.pipeline.changes.executions import ExecutionRecord, all_records
from dagrpo.pipeline.job_files import recorded_code
from dagrpo.pipeline.record import in_any_experiment
from dagrpo.report.comparison import MetricComparison, compared, with_choices
from dagrpo.report.inputs import Evaluation, Variant, evaluation_key, read_evaluation
from dagrpo.utils.files import canonical_json

RESULTS = Path("results")
SAME_CONTRACT = ("extractor", "confidence")  # of scores.json: where they differ, scores mean different things
RUNTIME = "runtime"
GROUPS = ("parameters", "data", "code", "environment", RUNTIME)
DIGITS = 12
LAST = "report"  # the stage with which an experiment is finished
ABSENT = "\N{EM DASH}"
Facts = dict[tuple[str, str], str]  # (group, name) -> text


class Problem(NamedTuple):
    """A problem by its content: its index in a file may differ between two experiments."""

    question: str
    ground_truth: str
    copy: int  # from 0, of problems with the same content


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Evaluations of one policy of one experiment."""

    name: str  # of the experiment, with that of a policy that is named with it
    evaluations: Mapping[str, Mapping[int, Evaluation]]  # by task, then by seed; a task's seeds met the same problems
    choices: Mapping[int, Mapping[str, Any]]  # by seed, of the chosen policy

    @property
    def tasks(self) -> list[str]:
        return list(self.evaluations)

    def seeds(self, task: str) -> list[int]:
        return sorted(self.evaluations[task])

    def resampling(self, task: str) -> Resampling:
        """Return the parameters of a task's intervals."""
        summary = self.evaluations[task][self.seeds(task)[0]].summary
        return Resampling(confidence=summary["confidence"], **summary["bootstrap"])

    def problems(self, task: str) -> list[Problem]:
        """Return the problems of a task, in the order of the metrics' values."""
        scores = self.evaluations[task][self.seeds(task)[0]].scores
        table = scores.select(["problem_index", "sample_index", "question", "ground_truth"])
        rows = [row for row in table.to_pylist() if row["sample_index"] == GREEDY]
        copies: Counter[tuple[str, str]] = Counter()
        problems = []
        for row in sorted(rows, key=lambda row: int(row["problem_index"])):
            content = (row["question"], row["ground_truth"])
            problems.append(Problem(*content, copy=copies[content]))
            copies[content] += 1
        return problems


def read_evaluated(name: str, policy: str) -> Evaluated:
    """Read an experiment's scores; `name` may also be its folder, and name another policy, such as a@40.

    Raises UserError for missing or damaged scores.
    """
    name, other = split_policy(name)
    policy = other or policy
    folder = Path(name) if Path(name).is_dir() and Path(name).parent != Path() else RESULTS / name
    files = [path for path in sorted(folder.glob(f"**/seed_*/eval/*/{policy}/scores.parquet")) if are_current(path)]
    if not files and folder.is_dir() and other:
        raise UserError(
            f"{folder} has no scores of {other}: add it to evaluation.policies, run the experiment, then compare it."
        )
    if not files and folder.is_dir():
        raise UserError(f"{folder} has no scores yet: run the experiment to its stage score, then compare it.")
    if not files:
        names = {path.parts[1] for path in RESULTS.glob("*/runs/*/eval/*/*/scores.parquet")}
        raise UserError(f"There is no experiment `{name}` with scores in {RESULTS}: {nearest(folder.name, names)}.")
    evaluations: dict[str, dict[int, Evaluation]] = {}
    runs = {evaluation_key(path)[2]: path.parents[3] for path in files if policy == CHOSEN}
    choices = {seed: read_choice(run / "chosen/choice.json") for seed, run in runs.items()}
    for path in files:
        task, _, seed = evaluation_key(path)
        evaluations.setdefault(task, {})[seed] = read_evaluation(path, path.with_name("scores.json"))
    own = f"@{other.removeprefix('step_')}" if other else ""
    return Evaluated(name=f"{folder.name}{own}", evaluations=evaluations, choices=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """Two experiments on one task."""

    task: str
    first: str
    second: str
    problems: int  # that both have met
    left_out: int  # that only one of them has met
    seeds: tuple[int, ...]  # that both have; empty: none, and each one's seeds are averaged
    confidence: float
    metrics: tuple[MetricComparison, ...]


def pairs(evaluated: Sequence[Evaluated]) -> tuple[list[TaskPair], list[str]]:
    """Compare every later experiment with the first one, task by task; return also messages on what cannot be compared."""
    first, *others = evaluated
    task_pairs, notes = list[TaskPair](), list[str]()
    for second in others:
        for task in first.tasks:
            if (trouble := trouble_between(first, second, task)) is None:
                task_pairs.append(_pair(first, second, task))
            else:
                notes.append(trouble)
        notes += [f"{first.name} has no scores of {task}." for task in second.tasks if task not in first.tasks]
    return task_pairs, list(dict.fromkeys(notes))


def trouble_between(first: Evaluated, second: Evaluated, task: str) -> str | None:
    """Return a sentence on why two experiments cannot be compared on a task; None if they can."""
    if task not in second.tasks:
        return f"{second.name} has no scores of {task}."
    if not set(first.problems(task)) & set(second.problems(task)):
        return f"{first.name} and {second.name} share no problem of {task}."
    one, other = (each.evaluations[task][each.seeds(task)[0]].summary for each in (first, second))
    differing = [name for name in SAME_CONTRACT if one[name] != other[name]]
    if differing:
        return (
            f"{first.name} and {second.name} have scored {task} with another {' and '.join(differing)}: give both the same "
            "evaluation.scoring, and run the stage score."
        )
    return None


def _pair(first: Evaluated, second: Evaluated, task: str) -> TaskPair:
    resampling = first.resampling(task)
    seeds, shared = shared_by(first, second, task)
    ones, others = (values_of(each, task, seeds, shared) for each in (first, second))
    chosen = [[each.choices[seed] for seed in seeds or each.choices if each.choices] for each in (first, second)]
    return TaskPair(
        task=task,
        first=first.name,
        second=second.name,
        problems=len(shared),
        left_out=len({*first.problems(task)} ^ {*second.problems(task)}),
        seeds=seeds,
        confidence=resampling.confidence,
        metrics=tuple(
            with_choices(compared(name, ones[name], others[name], resampling), task, resampling.confidence, *chosen)
            for name in ones
            if name in others and name != "pass_at_1"  # that is mean@k
        ),
    )


def shared_by(first: Evaluated, second: Evaluated, task: str) -> tuple[tuple[int, ...], list[Problem]]:
    """Return the seeds and the problems of a task that both have."""
    theirs = set(second.problems(task))
    seeds = tuple(seed for seed in first.seeds(task) if seed in second.seeds(task))
    return seeds, [problem for problem in first.problems(task) if problem in theirs]


def values_of(evaluated: Evaluated, task: str, seeds: Sequence[int], shared: Sequence[Problem]) -> dict[str, Floats]:
    """Return each metric on the shared problems, [seeds, problems]; without shared seeds the mean over all, [1, problems]."""
    place = {problem: number for number, problem in enumerate(evaluated.problems(task))}
    columns = [place[problem] for problem in shared]
    by_seed = evaluated.evaluations[task]
    values = [values_per_problem(by_seed[seed].outcomes) for seed in seeds or evaluated.seeds(task)]
    stacked = {name: np.stack([each[name][columns] for each in values]) for name in values[0]}
    return stacked if seeds else {name: matrix.mean(axis=0, keepdims=True) for name, matrix in stacked.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key whose value differs between the experiments."""

    group: str  # one of GROUPS
    name: str  # a dotted key, a file, a stage, a package
    values: tuple[str, ...]  # one for each experiment


def differences(names: Sequence[str]) -> list[Difference]:
    """Return every recorded value that differs between the experiments, by group. Raises UserError for a damaged record.

    If one of them is unfinished, these are values of the stages that all of them have.
    """
    records = [all_records(split_policy(name)[0]) for name in names]
    if any(map(_is_unfinished, records)):
        shared = set[str].intersection(*map(_stages, filter(None, records)))
        records = [[each for each in own if each.stage in shared] for own in records]
    facts = _with_files([_facts(each) for each in records], records)
    keys = sorted({key for each in facts for key in each}, key=lambda key: (GROUPS.index(key[0]), key[1]))
    rows = [
        Difference(group=group, name=name, values=tuple(each.get((group, name), ABSENT) for each in facts))
        for group, name in keys
    ]
    return [each for each in rows if len(set(each.values)) > 1]


def unfinished(names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on each experiment that lacks stages, with those that another one has. Raises UserError for a damaged record."""
    records = [all_records(split_policy(name)[0]) for name in names]
    made = set[str].union(*map(_stages, records))
    for name, own in zip(names, records, strict=True):
        if _is_unfinished(own):
            wanted = (made | {LAST}) - _stages(own)
            lacking = ", ".join(stage.name for stage in dag.in_order() if stage.name in wanted)
            yield f"{name} is unfinished, without {lacking} yet: the differences are those of stages that all have."


def _is_unfinished(records: Sequence[ExecutionRecord]) -> bool:
    return bool(records) and LAST not in _stages(records)


def _stages(records: Sequence[ExecutionRecord]) -> set[str]:
    return {each.stage for each in records}


def _facts(records: Sequence[ExecutionRecord]) -> Facts:
    """Return every recorded value by its group and name; several where stages of an experiment ran with different ones."""
    values: dict[tuple[str, str], set[str]] = {}
    for key, text in (fact for each in records for fact in _of_record(each)):
        values.setdefault(key, set()).add(text)
    return {key: ", ".join(sorted(texts)) for key, texts in values.items()}


def _of_record(record: ExecutionRecord) -> Iterator[tuple[tuple[str, str], str]]:
    for key, value in flat(record.params).items():
        yield ("parameters", key), canonical_json(value)
    for key, value in flat(record.runtime).items():
        yield (RUNTIME, f"runtime.{key}"), canonical_json(value)
    for path, digest in record.outputs.items() if record.stage == "prepare" else ():
        yield ("data", in_any_experiment(path, record.experiment).removeprefix("data/*/")), digest[:DIGITS]
    for name, version in record.environment.items():
        if name != "device" or record.stage == "train":  # other stages use the CPU anyway
            yield ("environment", name), str(version)
    yield ("code", f"stage {record.stage}"), record.code[:DIGITS]


def _with_files(facts: Sequence[Facts], records: Sequence[Sequence[ExecutionRecord]]) -> list[Facts]:
    """Replace a stage whose code differs by the files that differ, if the digest of each is recorded."""
    result = [dict(each) for each in facts]
    stages = {name for each in facts for group, name in each if group == "code"}
    for stage in stages:
        if len({each.get(("code", stage)) for each in facts}) == 1:
            continue
        files = [_files_of(each, stage.removeprefix("stage ")) for each in records]
        if all(digests is not None for digests in files):
            for own, digests in zip(result, files, strict=True):
                del own["code", stage]
                own.update({("code", file): digest[:DIGITS] for file, digest in (digests or {}).items()})
    return result


def _files_of(records: Sequence[ExecutionRecord], stage: str) -> Mapping[str, str] | None:
    each = next((each for each in records if each.stage == stage), None)
    return None if each is None else recorded_code(each.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison: scores and differences."""

    names: tuple[str, ...]
    policy: Variant  # whose scores these are
    pairs: tuple[TaskPair, ...]
    notes: tuple[str, ...]  # sentences on what cannot be compared, and who is unfinished
    differences: tuple[Difference, ...]


def compare(experiments: Sequence[str], policy: Variant = "trained") -> Comparison:
    """Compare experiments, by name or by folder. Raises UserError if one has no scores, or there is nothing to compare."""
    evaluated = [read_evaluated(name, policy) for name in experiments]
    names = tuple(each.name for each in evaluated)
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("Name two experiments or more, each once: `dagrpo compare A B`.")
    task_pairs, notes = pairs(evaluated)
    return Comparison(
        names=names,
        policy=policy,
        pairs=tuple(task_pairs),
        notes=(*notes, *unfinished(names)),
        differences=tuple(differences(names)),
    )
