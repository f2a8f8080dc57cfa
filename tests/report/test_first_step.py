"""The first step of training beside the evaluation of the policy that sampled it: base answers 60% of 40 problems."""

import pyarrow as pa
import pytest
from tests.report.synthetic import GROUP, Files, list_again

from dagrpo.report.first_step import AS_THEY_COME, SAME, doubts
from dagrpo.report.parameters import Parameter
from dagrpo.utils.tables import read_parquet, write_parquet

VALUES = {key: "1.0" for pair in SAME for key in pair} | dict(AS_THEY_COME)


def _parameters(**changed: str) -> dict[str, list[Parameter]]:
    sections: dict[str, list[Parameter]] = {}
    for dotted, value in (VALUES | {key.replace("__", "."): value for key, value in changed.items()}).items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, []).append(Parameter(key=key, values=(value,), stages=("train",)))
    return sections


def _first_step(files: Files, right: int, prompts: int = 32) -> Files:
    """So many of the prompts are answered right, each by all of its samples; the others by none."""
    manifest = files.rollouts[0]
    path = manifest.parent / "step_00001.parquet"
    row = read_parquet(path).slice(0, 1).drop_columns(["correct", "discarded"])
    problems = [at // GROUP for at in range(prompts * GROUP)]
    table = pa.concat_tables([row] * len(problems))
    for name, values in (
        ("task", ["arithmetic"] * len(problems)),
        ("problem_index", problems),
        ("correct", [problem < right for problem in problems]),
        ("discarded", [problem >= right for problem in problems]),
    ):
        table = table.append_column(name, pa.array(values))
    write_parquet(path, table)
    list_again(manifest)
    return files


@pytest.mark.parametrize("right", [14, 26])
def test_a_first_step_within_chance_of_the_base_policy_raises_no_doubt(right: int, experiment: Files) -> None:
    # 32 problems, all right or all wrong: standard errors of 9 points, so that 44% and 81% are within 3.89 of them of 60%.
    # The wrong ones were thrown away by dynamic sampling, and count.
    assert doubts(_first_step(experiment, right).read(), _parameters()) == []


@pytest.mark.parametrize(("right", "told"), [(0, "0.0%"), (4, "12.5%"), (32, "100.0%")])
def test_a_first_step_that_is_not_the_base_policys_is_told_of(right: int, told: str, experiment: Files) -> None:
    (sentence,) = doubts(_first_step(experiment, right).read(), _parameters())
    assert sentence.startswith(
        f"Seed 0: in step 1, before any update, {told} of the answers on arithmetic were correct"
    )
    assert len(sentence) < 500


@pytest.mark.parametrize(
    "changed", [{"rollout__temperature": "0.6"}, {"training__order": '"easy_first"'}, {"reward__extractor": '"exact"'}]
)
def test_where_sampling_or_reading_differ_nothing_is_compared(changed: dict[str, str], experiment: Files) -> None:
    assert doubts(_first_step(experiment, 0).read(), _parameters(**changed)) == []
