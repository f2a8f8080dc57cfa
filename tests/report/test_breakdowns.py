"""Scores by kind of problem and by pass rate of the base policy, on outcomes that can be counted by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.report.synthetic import make_experiment

from dagrpo.data.schema import SCHEMA
from dagrpo.evaluation.statistics import wilson
from dagrpo.report.breakdowns import MOST_KINDS, OTHERS, breakdown
from dagrpo.report.inputs import Inputs
from dagrpo.report.splits import Kinds
from dagrpo.utils.tables import write_parquet

TASK = "arithmetic"
BASE = ([0, 0, 0, 1, 1, 1], [[0, 0], [0, 0], [1, 0], [1, 0], [1, 1], [1, 1]])
TRAINED = ([0, 1, 1, 1, 1, 1], [[0, 0], [1, 0], [1, 1], [1, 1], [1, 1], [0, 0]])


def split(folder: Path, task: str = TASK, **columns: list[str]) -> Path:
    path = folder / task / "test.parquet"
    without_pictures = pa.array([[]] * len(next(iter(columns.values()))), SCHEMA.field("images").type)
    write_parquet(path, pa.table({**columns, "images": without_pictures}))
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """Six problems with two samples each, as in BASE and TRAINED."""
    made = make_experiment(tmp_path, problems=6, samples=2).read()
    outcomes: dict[str, tuple[Any, Any]] = {"base": BASE, "trained": TRAINED}
    evaluations = {
        key: replace(
            each,
            outcomes=replace(
                each.outcomes,
                greedy=np.array(outcomes[key[1]][0], dtype=bool),
                sampled=np.array(outcomes[key[1]][1], dtype=bool),
            ),
        )
        for key, each in made.evaluations.items()
    }
    return replace(made, evaluations=evaluations)


def test_groups_are_made_from_the_samples_of_base_and_compared_by_the_greedy_completions(inputs: Inputs) -> None:
    found = breakdown(inputs, TASK)
    assert found.by_kind == []
    assert [(group.name, group.problems) for group in found.by_base] == [("0 of 2", 2), ("1 of 2", 2), ("2 of 2", 2)]
    shares = [(group.greedy.first.value, group.greedy.second.value) for group in found.by_base]
    assert shares == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.0)]
    assert [group.moved for group in found.by_base] == [(1, 1, 0), (0, 0, 2), (1, 0, 1)]
    assert found.by_base[0].greedy.first == wilson(0, 2, 0.95)
    assert all(group.is_small for group in found.by_base)


def test_completions_that_the_seeds_share_count_once(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, seeds=(1, 2, 3), problems=6, samples=2).read()
    of_seeds = breakdown(made, TASK)
    assert of_seeds.samples == 6
    shared = {(TASK, "base", seed): made.evaluations[TASK, "base", 1] for seed in made.seeds}
    inputs = replace(made, evaluations={**made.evaluations, **shared})
    found = breakdown(inputs, TASK)
    assert found.samples == 2
    assert {group.name for group in found.by_base} <= {"0 of 2", "1 of 2", "2 of 2"}
    trained = [made.evaluations[TASK, "trained", seed].outcomes.sampled for seed in made.seeds]
    whole = np.concatenate(trained, axis=1).all(axis=1).sum()
    assert sum(group.moved[2] for group in found.by_base if group.moved) == whole
    assert inputs.seeds_sampled(TASK, "base") == [1]
    assert inputs.seeds_sampled(TASK, "trained") == [1, 2, 3]


def test_kinds_are_those_of_the_split_by_the_row_of_the_problem(inputs: Inputs, tmp_path: Path) -> None:
    path = split(tmp_path / "s", ability=["b", "a", "b", "b", "a", "a"], data_source=["x"] * 6)
    found = breakdown(replace(inputs, kinds=Kinds([path])), TASK)
    assert [(group.name, group.problems) for group in found.by_kind] == [("a", 3), ("b", 3)]
    assert [group.greedy.first.value for group in found.by_kind] == pytest.approx([2 / 3, 1 / 3])
    assert found.by_kind[0].moved is None
    kinds = Kinds([split(tmp_path, ability=["math"] * 3, data_source=["x", "y", "x"])])
    assert kinds.of(TASK, [0, 1]) == ["x", "y"], "where all are of one ability the source tells them apart"
    assert kinds.of(TASK, [0, 2]) is kinds.of("another", [0, 1]) is None


def test_kinds_without_end_have_a_row_for_those_that_are_left(inputs: Inputs, tmp_path: Path) -> None:
    made = make_experiment(tmp_path / "many", problems=MOST_KINDS + 5).read()
    names = [f"kind {number:02}" for number in range(MOST_KINDS + 4)]
    path = split(tmp_path / "s", ability=[*names, names[0]], data_source=["x"] * (MOST_KINDS + 5))
    groups = breakdown(replace(made, kinds=Kinds([path])), TASK).by_kind
    assert len(groups) == MOST_KINDS + 1
    assert (groups[0].name, groups[0].problems) == (names[0], 2)
    assert (groups[-1].name, groups[-1].problems) == (OTHERS, 4)
