"""The first step of training beside the evaluation of the policy that sampled it: base answers 60% of 40 problems."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.report.synthetic import GROUP, Files, list_again, page_of

from dagrpo.report.first_step import AS_THEY_COME, SAME, doubts
from dagrpo.report.page import render
from dagrpo.report.parameters import Parameter
from dagrpo.report.results import summary_markdown
from dagrpo.utils.tables import read_parquet, write_parquet

VALUES = {key: "1.0" for pair in SAME for key in pair} | dict(AS_THEY_COME)


def _parameters(**changed: str) -> dict[str, list[Parameter]]:
    sections: dict[str, list[Parameter]] = {}
    for dotted, value in (VALUES | {key.replace("__", "."): value for key, value in changed.items()}).items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, []).append(Parameter(key=key, values=(value,), stages=("train",)))
    return sections


def _first_step(files: Files, right: int, prompts: int = 32, task: str = "arithmetic") -> Files:
    """So many of the prompts are answered right, each by all of its samples; the others by none."""
    manifest = files.rollouts[0]
    path = manifest.parent / "step_00001.parquet"
    row = read_parquet(path).slice(0, 1).drop_columns(["correct"])
    count = prompts * GROUP
    table = pa.concat_tables([row] * count).append_column("task", pa.array([task] * count))
    table = table.append_column("problem_index", pa.array([at // GROUP for at in range(count)]))
    write_parquet(path, table.append_column("correct", pa.array([at // GROUP < right for at in range(count)])))
    list_again(manifest)
    return files


@pytest.mark.parametrize("right", [14, 19, 26])
def test_a_first_step_within_chance_of_the_base_policy_raises_no_doubt(right: int, experiment: Files) -> None:
    # 32 problems, all right or all wrong: standard errors of 9 points, so that 44% and 81% are within 3.89 of them of 60%.
    assert doubts(_first_step(experiment, right).read(), _parameters()) == []


def test_groups_that_dynamic_sampling_has_thrown_away_are_counted(experiment: Files) -> None:
    # 26 of 32 are right, which is within chance of 60%; without the others, which were thrown away, all would be.
    manifest = _first_step(experiment, 26).rollouts[0]
    path = manifest.parent / "step_00001.parquet"
    table = read_parquet(path).drop_columns(["discarded"])
    discarded = pa.array([problem >= 26 for problem in table["problem_index"].to_pylist()])
    write_parquet(path, table.append_column("discarded", discarded))
    list_again(manifest)
    assert doubts(experiment.read(), _parameters()) == []


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


def test_a_doubt_stands_on_the_page_and_in_the_summary(experiment: Files, tmp_path: Path) -> None:
    page = replace(page_of(experiment), doubts=("Seed 0: <b>odd</b>.",))
    assert "<b>Doubtful.</b> Seed 0: &lt;b&gt;odd&lt;/b&gt;." in render(page)
    assert "**Doubtful.** Seed 0" in summary_markdown("tiny", page.comparisons, {}, page.doubts)
