"""An experiment's evaluations of one policy, by task and seed.

Problems are identified by what they ask.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dagrpo.core.errors import UserError
from dagrpo.core.suggest import nearest
from dagrpo.report.inputs import Evaluation, Variant, evaluation_key, read_evaluation
from dagrpo.rollout.trajectory import GREEDY

RESULTS = Path("results")


class Problem(NamedTuple):
    """A problem by its content: its place in a file may differ between two experiments."""

    question: str
    ground_truth: str
    copy: int  # from 0, of problems with the same content


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One policy of one experiment."""

    name: str  # of the experiment
    evaluations: Mapping[str, Mapping[int, Evaluation]]  # by task, then by seed; a task's seeds met the same problems

    @property
    def tasks(self) -> list[str]:
        return list(self.evaluations)

    def seeds(self, task: str) -> list[int]:
        return sorted(self.evaluations[task])

    def problems(self, task: str) -> list[Problem]:
        """Return the problems of a task, in the order of each metric's values."""
        return _problems(self.evaluations[task][self.seeds(task)[0]])


def read_evaluated(name: str, policy: Variant) -> Evaluated:
    """Read an experiment's scores; `name` may also be its folder. Raises UserError for missing or damaged scores."""
    folder = Path(name) if Path(name).is_dir() and Path(name).parent != Path() else RESULTS / name
    files = sorted(folder.glob(f"**/seed_*/eval/*/{policy}/scores.parquet"))
    if not files:
        raise UserError(_no_scores(name, folder))
    found: dict[str, dict[int, Evaluation]] = {}
    for path in files:
        task, _, seed = evaluation_key(path)
        found.setdefault(task, {})[seed] = read_evaluation(path, path.with_name("scores.json"))
    for task, by_seed in found.items():
        if len({tuple(_problems(each)) for each in by_seed.values()}) > 1:
            raise UserError(f"{folder}: the seeds have met different problems of {task}: run the stage sample again.")
    return Evaluated(name=folder.name, evaluations=found)


def _no_scores(name: str, folder: Path) -> str:
    if folder.is_dir():
        return f"{folder} has no scores yet: run the experiment to its stage score, then compare it."
    known = {path.parts[1] for path in RESULTS.glob("*/runs/*/eval/*/*/scores.parquet")}
    return f"There is no experiment `{name}` with scores in {RESULTS}: {nearest(folder.name, known)}."


def _problems(evaluation: Evaluation) -> list[Problem]:
    table = evaluation.scores.select(["problem_index", "sample_index", "question", "ground_truth"])
    rows = [row for row in table.to_pylist() if row["sample_index"] == GREEDY]
    copies: Counter[tuple[str, str]] = Counter()
    problems = []
    for row in sorted(rows, key=lambda row: int(row["problem_index"])):
        content = (row["question"], row["ground_truth"])
        problems.append(Problem(*content, copy=copies[content]))
        copies[content] += 1
    return problems
