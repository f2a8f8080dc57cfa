"""What the report computes and how it words it."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.report.synthetic import Files, list_again, make_experiment

from dagrpo.evaluation.outcomes import WITHOUT_PICTURES
from dagrpo.evaluation.statistics import Estimate
from dagrpo.report import format
from dagrpo.report.build import metrics_to_log
from dagrpo.report.comparison import MetricComparison, TaskComparison, compare
from dagrpo.report.curves import Curves, curves, moving_average, to_csv
from dagrpo.report.examples import examples, problem_changes
from dagrpo.report.results import metrics_json, scores_csv, summary_markdown
from dagrpo.report.rollouts import first_and_last
from dagrpo.utils.tables import read_parquet, write_parquet


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high)


def comparison(*differences: Estimate, seeds: tuple[int, ...] = (0,)) -> TaskComparison:
    names = ("greedy", "mean_at_4", "pass_at_4")
    metrics = tuple(
        MetricComparison(
            metric=name,
            base=estimate(0.6, 0.5, 0.7),
            trained=estimate(0.6 + d.value, 0.5, 0.9),
            difference=d,
            detectable=0.1,
        )
        for name, d in zip(names, differences, strict=False)
    )
    return TaskComparison(
        task="gsm8k", problems=100, samples=4, seeds=seeds, confidence=0.95, metrics=metrics, greedy_by_seed=()
    )


BETTER = estimate(0.2, 0.1, 0.3)
WORSE = estimate(-0.2, -0.3, -0.1)
UNSURE = estimate(0.02, -0.05, 0.09)


def test_the_headline_states_the_interval() -> None:
    assert format.headline(comparison(BETTER)) == (
        "GRPO raised greedy accuracy on gsm8k from 60.0% to 80.0% (+20.0 points, 95% interval +10.0 to +30.0)."
    )
    assert format.headline(comparison(WORSE)).startswith("GRPO lowered greedy accuracy")


def test_an_interval_that_includes_zero_is_not_sold_as_a_gain() -> None:
    unsure = comparison(UNSURE)
    assert format.headline(unsure).startswith("No difference shown on gsm8k: greedy accuracy went from 60.0% to 62.0%")
    assert "The interval includes 0" in format.interpretation(unsure)


def test_a_difference_too_small_for_the_comparison_is_called_so() -> None:
    sentence = "It had little chance to show a difference as small as this one: 100 problems and 1 seed show one of 10.0 points"
    assert sentence in format.interpretation(comparison(UNSURE))
    assert "little chance" not in format.interpretation(comparison(BETTER))
    assert "little chance" not in format.interpretation(comparison(estimate(0.1, -0.01, 0.21)))


def test_a_score_that_was_helped_by_an_oracle_says_so_wherever_it_stands() -> None:
    helped = replace(comparison(BETTER), oracle=True)
    assert format.headline(helped).startswith("GRPO raised greedy accuracy on gsm8k (oracle) from 60.0%")
    assert "| gsm8k (oracle) | Greedy accuracy | 60.0%" in summary_markdown("tools", [helped])
    assert metrics_to_log([helped]) == {"eval/gsm8k_oracle/greedy_difference": 0.2}


def test_metrics_that_do_not_show_what_greedy_accuracy_shows_are_named() -> None:
    text = format.interpretation(comparison(BETTER, BETTER, UNSURE))
    assert "Other metrics show no such difference: pass@4 (+2.0, \N{MINUS SIGN}5.0 to +9.0)." in text
    assert "Other metrics" not in format.interpretation(comparison(BETTER, BETTER))


def test_answers_without_pictures_need_not_become_better_with_the_others() -> None:
    seen = comparison(BETTER, UNSURE)
    blind = replace(seen, metrics=(seen.metrics[0], replace(seen.metrics[1], metric=WITHOUT_PICTURES)))
    assert "Other metrics show no such difference" in format.interpretation(seen)
    assert "Other metrics" not in format.interpretation(blind)


@pytest.mark.parametrize(
    ("difference", "text"), [(0.199, "+19.9"), (-0.05, "\N{MINUS SIGN}5.0"), (0.0, "\N{PLUS-MINUS SIGN}0.0")]
)
def test_points_carry_a_sign(difference: float, text: str) -> None:
    assert format.points(difference) == text
    assert format.points_interval(estimate(difference, 0.0, difference)).startswith("0.0 to"), "an end of 0 has none"


def test_comparison_agrees_with_the_scores_of_a_single_seed(experiment: Files) -> None:
    inputs = experiment.read()
    found = compare(inputs, "arithmetic")
    for variant in ("base", "trained"):
        summary = inputs.evaluations["arithmetic", variant, 0].summary
        shown = {metric.metric: getattr(metric, variant).as_dict() for metric in found.metrics}
        assert shown["greedy"] == summary["greedy"]
        assert shown["mean_at_4"] == {k: v for k, v in summary["mean_at_k"].items() if k != "k"}
        assert shown["pass_at_2"] == summary["pass_at_k"]["2"]
    for metric in found.metrics:
        assert metric.difference.value == pytest.approx(metric.trained.value - metric.base.value)


def test_several_seeds_are_averaged_and_shown_one_by_one(tmp_path: Path) -> None:
    found = compare(make_experiment(tmp_path, seeds=(0, 1, 2)).read(), "arithmetic")
    assert found.greedy.base.value == pytest.approx(np.mean([seed.base.value for seed in found.greedy_by_seed]))
    assert found.greedy.difference.low <= found.greedy.difference.value <= found.greedy.difference.high


def test_moving_average_leaves_out_steps_without_a_value_and_stays_after_the_last() -> None:
    averages = moving_average(np.array([[1.0, np.nan, 3.0, np.nan, np.nan]]), 2)
    np.testing.assert_array_equal(averages, [[1.0, 1.0, 3.0, 3.0, 3.0]])
    assert moving_average(np.array([[1.0, 2.0, 6.0, 10.0]]), 3).tolist() == [[1.0, 1.5, 3.0, 6.0]], "it looks back only"


def test_curves_csv_has_one_row_per_seed_and_step(tmp_path: Path) -> None:
    found = curves(make_experiment(tmp_path, seeds=(0, 1), steps=4).read())
    rows = list(csv.DictReader(to_csv(found).splitlines()))
    assert [(row["seed"], row["step"]) for row in rows] == [(s, t) for s in "01" for t in "1234"]
    assert float(rows[5]["reward/mean"]) == found["reward/mean"][1, 1]


def test_first_and_last_steps_do_not_overlap(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, steps=5).read()
    phases = first_and_last(inputs, 10)
    assert phases is not None
    first, last = phases
    assert (first.steps, last.steps) == ((1, 2), (4, 5))
    assert len(first.rewards) == 2 * 4 * 8
    assert first.group_size == 8
    assert first.right_per_group.sum() == first.rewards.sum()


def test_what_a_step_has_thrown_away_is_in_no_figure(tmp_path: Path) -> None:
    files = make_experiment(tmp_path, steps=2)
    before = first_and_last(files.read(), 1)
    assert before is not None
    manifest = files.rollouts[0]
    path = manifest.with_name("step_00001.parquet")
    table = read_parquet(path)
    first = table.slice(0, 8)  # a group, which is thrown away with a reward of 9
    for name, value in (("reward", pa.scalar(9.0, pa.float32())), ("correct", True), ("discarded", True)):
        first = first.set_column(first.column_names.index(name), name, pa.repeat(value, 8))
    write_parquet(path, pa.concat_tables([table.slice(0, 8), first, table.slice(8)]))
    list_again(manifest)
    after = first_and_last(files.read(), 1)
    assert after is not None
    assert [phase.rewards.tolist() for phase in after] == [phase.rewards.tolist() for phase in before]
    assert after[0].right_per_group.tolist() == before[0].right_per_group.tolist()
    assert after[0].group_size == 8


def test_metrics_are_the_few_columns_of_dvc_in_the_order_of_reading() -> None:
    recorded = Curves(
        seeds=(0, 1), steps=np.arange(1.0, 4.0), ends=(3, 3), values={"reward/mean": np.array([[9, 0, 1], [9, 1, 0.5]])}
    )
    found = metrics_json([comparison(UNSURE, BETTER)], recorded, 2)
    assert list(found) == ["gsm8k", "mean reward"]
    assert found["mean reward"] == 0.625
    assert list(found["gsm8k"].items()) == [  # type: ignore[union-attr]
        ("base", 0.6),
        ("trained", 0.62),
        ("difference", 0.02),
        ("interval", "-0.050 to +0.090"),
    ]


def test_scores_have_a_row_per_policy_with_its_interval() -> None:
    assert scores_csv([comparison(UNSURE)]).splitlines() == [
        "task,metric,policy,score,low,high",
        "gsm8k,Greedy accuracy,base,0.6,0.5,0.7",
        "gsm8k,Greedy accuracy,trained,0.62,0.5,0.9",
    ]


def test_the_summary_has_a_line_per_metric_and_a_sentence_per_task(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, tasks=("a", "b")).read()
    text = summary_markdown("tiny", [compare(inputs, task) for task in inputs.tasks])
    assert text.count("| pass@4 |") == 2
    assert text.count("\n- ") == 2


def test_best_are_right_and_worst_are_wrong(experiment: Files) -> None:
    shown = examples(experiment.read(), "arithmetic", 3)
    assert [example.trained.verdict for example in shown.best] == ["right"] * 3
    assert all(example.trained.verdict != "right" for example in shown.worst)
    gains = [problem.change for problem in shown.gained]
    assert gains == sorted(gains, reverse=True)
    assert all(problem.change < 0 for problem in shown.lost)


def test_changes_are_shares_over_all_completions(experiment: Files) -> None:
    inputs = experiment.read()
    (third,) = (problem for problem in problem_changes(inputs, "arithmetic") if problem.index == 3)
    assert (third.base, third.trained) == (0.0, 0.0)  # the hostile completion is wrong every time
    found = inputs.evaluations["arithmetic", "base", 0].outcomes
    assert problem_changes(inputs, "arithmetic")[0].base == (found.greedy[0] + found.sampled[0].sum()) / 5


def test_seeds_tasks_and_policies_are_read_from_the_paths(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(10, 2), tasks=("b", "a")).read()
    assert inputs.seeds == (2, 10)
    assert inputs.tasks == ("b", "a")
    assert set(inputs.evaluations) == {(t, v, s) for t in "ab" for v in ("base", "trained") for s in (2, 10)}


def test_rollouts_that_are_not_those_of_the_manifest_are_named(experiment: Files) -> None:
    (experiment.rollouts[0].parent / "step_00012.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ValueError, match=r"step_00012\.parquet is truncated .*, but .* lists it: run the stage train again"
    ):
        first_and_last(experiment.read(), 3)
