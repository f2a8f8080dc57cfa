"""What the report computes and how it words it."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.report.synthetic import Files, list_again, make_experiment

from dagrpo.evaluation.outcomes import WITHOUT_PICTURES
from dagrpo.evaluation.statistics import Estimate, Resampling, bootstrap, wilson
from dagrpo.report import format
from dagrpo.report.build import metrics_to_log
from dagrpo.report.comparison import MetricComparison, TaskComparison, compare, compared
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
            name=name,
            first=estimate(0.6, 0.5, 0.7),
            second=estimate(0.6 + d.value, 0.5, 0.9),
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


NEITHER = "No difference shown on gsm8k: greedy accuracy went from 60.0% to 62.0%"
LITTLE = (
    "It had little chance to show a difference as small as this one: 100 problems and 1 seed show one of 10.0 points"
)
OTHERS = "Other metrics show no such difference"


@pytest.mark.parametrize(
    ("found", "said", "not_said"),
    [
        (
            comparison(BETTER),
            "GRPO raised greedy accuracy on gsm8k from 60.0% to 80.0% (+20.0 points, 95% interval +10.0 to +30.0).",
            LITTLE,
        ),
        (comparison(WORSE), "GRPO lowered greedy accuracy", LITTLE),
        (comparison(UNSURE), NEITHER, "raised"),
        (comparison(UNSURE), "The interval includes 0", "excludes 0"),
        (comparison(UNSURE), LITTLE, OTHERS),
        (comparison(estimate(0.1, -0.01, 0.21)), "The interval includes 0", LITTLE),
        (comparison(BETTER, BETTER), "The interval excludes 0", OTHERS),
        (comparison(BETTER, BETTER, UNSURE), f"{OTHERS}: pass@4 (+2.0, \N{MINUS SIGN}5.0 to +9.0).", LITTLE),
        (comparison(BETTER, UNSURE), OTHERS, LITTLE),
    ],
)
def test_what_an_interval_shows_is_said_and_no_more(found: TaskComparison, said: str, not_said: str) -> None:
    text = f"{format.headline(found)} {format.interpretation(found)}"
    assert said in text
    assert not_said not in text


def test_answers_without_pictures_need_not_become_better_with_the_others() -> None:
    seen = comparison(BETTER, UNSURE)
    blind = replace(seen, metrics=(seen.metrics[0], replace(seen.metrics[1], name=WITHOUT_PICTURES)))
    assert "Other metrics" not in format.interpretation(blind)


def test_a_score_that_was_helped_by_an_oracle_says_so_wherever_it_stands() -> None:
    helped = replace(comparison(BETTER, UNSURE), oracle=True)
    assert format.headline(helped).startswith("GRPO raised greedy accuracy on gsm8k (oracle) from 60.0%")
    summary = summary_markdown("tools", [helped, comparison(BETTER)])
    assert "| gsm8k (oracle) | Greedy accuracy | 60.0%" in summary
    assert (summary.count("| Greedy accuracy |"), summary.count("| mean@4 |"), summary.count("\n- ")) == (2, 1, 2)
    assert metrics_to_log([helped])["eval/gsm8k_oracle/greedy_difference"] == 0.2


@pytest.mark.parametrize(
    ("difference", "text"), [(0.199, "+19.9"), (-0.05, "\N{MINUS SIGN}5.0"), (0.0, "\N{PLUS-MINUS SIGN}0.0")]
)
def test_points_carry_a_sign(difference: float, text: str) -> None:
    assert format.points(difference) == text
    assert format.points_interval(estimate(difference, 0.0, difference)).startswith("0.0 to"), "an end of 0 has none"


def test_comparison_agrees_with_the_scores_of_a_single_seed(experiment: Files) -> None:
    inputs = experiment.read()
    found = compare(inputs, "arithmetic")
    for variant, place in (("base", "first"), ("trained", "second")):
        summary = inputs.evaluations["arithmetic", variant, 0].summary
        shown = {metric.name: getattr(metric, place).as_dict() for metric in found.metrics}
        assert shown["greedy"] == summary["greedy"]
        assert shown["mean_at_4"] == {k: v for k, v in summary["mean_at_k"].items() if k != "k"}
        assert shown["pass_at_2"] == summary["pass_at_k"]["2"]
    for metric in found.metrics:
        assert metric.difference.value == pytest.approx(metric.second.value - metric.first.value)


def test_a_pair_has_one_kind_of_interval_also_where_the_seeds_of_one_agree_on_each_problem() -> None:
    agreeing, mixed = np.array([[0.0, 1.0, 1.0, 1.0]]), np.array([[0.0, 0.5, 1.0, 1.0]])
    resampling = Resampling(confidence=0.95, draws=100, seed=0)
    for pair in ((agreeing, mixed), (mixed, agreeing)):
        found = compared("greedy", *pair, resampling)
        assert [found.first, found.second] == [bootstrap(values, resampling) for values in pair]
    found = compared("greedy", agreeing, agreeing, resampling)
    assert [found.first, found.second] == [wilson(3, 4, 0.95)] * 2


def test_several_seeds_are_averaged_and_shown_one_by_one(tmp_path: Path) -> None:
    found = compare(make_experiment(tmp_path, seeds=(0, 1, 2)).read(), "arithmetic")
    assert found.greedy.first.value == pytest.approx(np.mean([seed.first.value for seed in found.greedy_by_seed]))
    assert found.greedy.difference.low <= found.greedy.difference.value <= found.greedy.difference.high


def test_moving_average_leaves_out_steps_without_a_value_and_stays_after_the_last() -> None:
    averages = moving_average(np.array([[1.0, np.nan, 3.0, np.nan, np.nan]]), 2)
    np.testing.assert_array_equal(averages, [[1.0, 1.0, 3.0, 3.0, 3.0]])
    assert moving_average(np.array([[1.0, 2.0, 6.0, 10.0]]), 3).tolist() == [[1.0, 1.5, 3.0, 6.0]], "it looks back only"


def test_curves_have_a_row_for_each_seed_and_step_and_first_and_last_steps_do_not_overlap(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(10, 2), steps=5).read()
    found = curves(inputs)
    rows = list(csv.DictReader(to_csv(found).splitlines()))
    assert [(row["seed"], row["step"]) for row in rows] == [(s, t) for s in ("2", "10") for t in "12345"]
    assert float(rows[6]["reward/mean"]) == found["reward/mean"][1, 1]
    phases = first_and_last(inputs, 10)
    assert phases is not None
    first, last = phases
    assert (first.steps, last.steps, first.group_size) == ((1, 2), (4, 5), 8)
    assert len(first.rewards) == 2 * 2 * 4 * 8
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


def test_rollouts_that_are_not_those_of_the_manifest_are_named(experiment: Files) -> None:
    (experiment.rollouts[0].parent / "step_00012.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ValueError, match=r"step_00012\.parquet is truncated .*, but .* lists it: run the stage train again"
    ):
        first_and_last(experiment.read(), 3)
