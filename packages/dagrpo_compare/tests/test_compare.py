"""`dagrpo compare`: which is better over the problems that both have met, and what differs."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import hypot
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packages.dagrpo_compare.tests.conftest import Scored
from tests.pipeline.changes.made_up import Project
from typer.testing import CliRunner

from dagrpo.api.results import load_scores
from dagrpo.cli.application import app
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GREEDY
from dagrpo.evaluation.choice import with_choice
from dagrpo.evaluation.outcomes import WITHOUT_PICTURES
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_compare.command import others, render, render_parts, scope, verdict
from dagrpo_compare.comparison import Difference, compare, differences, unfinished


@pytest.fixture
def results(scored: Scored) -> Path:
    """The folder results/ with `one`, and `two`, whose policy is better."""
    scored("one", 0.3)
    return scored("two", 0.95).parents[1]


def set_column(folder: Path, name: str, value: Callable[[dict[str, Any]], object]) -> None:
    """Compute a column of all scores below a folder from their rows."""
    for path in folder.glob("**/scores.parquet"):
        table = read_parquet(path)
        place = table.column_names.index(name)
        values = pa.array(map(value, table.to_pylist()), table.schema.field(place).type)
        write_parquet(path, table.set_column(place, table.schema.field(place), values))


def test_the_better_one_is_named_with_the_interval_of_the_paired_difference(results: Path) -> None:
    (pair,) = compare(["one", "two"]).pairs
    assert (pair.problems, pair.left_out, pair.seeds) == (40, 0, (0, 1))
    assert pair.metrics[0].difference.low > 0
    assert verdict(pair).startswith("arithmetic: two is better than one (")
    assert "95% interval +" in verdict(pair)
    (other,) = compare(["two", "one"]).pairs
    assert verdict(other).startswith("arithmetic: one is worse than two (")
    assert other.metrics[0].difference.value == pytest.approx(-pair.metrics[0].difference.value)


def test_two_alike_show_no_difference_on_the_problems_that_both_have_wherever_they_stand(results: Path) -> None:
    shutil.copytree(results / "one", results / "three")
    (pair,) = compare(["one", "three"]).pairs
    assert verdict(pair).startswith("arithmetic: no difference shown between three and one")
    # No value differs: Wilson's upper end for 0 of 40, 3.841459 / 43.841459.
    assert verdict(pair).endswith("40 problems and 2 seeds show one of 8.8 points four times in five.")
    assert others(pair) == ""
    set_column(results / "three", "problem_index", lambda row: 39 - row["problem_index"])
    for path in (results / "three").glob("**/scores.parquet"):
        table = read_parquet(path)
        write_parquet(path, table.filter(pa.compute.less(table["problem_index"], 30)))
    (pair,) = compare(["one", "three"]).pairs
    assert (pair.problems, pair.left_out) == (30, 10)
    assert {metric.difference.value for metric in pair.metrics} == {0.0}
    assert "30 problems that both have met, 10 met by one alone left out" in scope(pair)


def test_metrics_that_say_something_else_than_greedy_accuracy_are_named(results: Path) -> None:
    shutil.copytree(results / "one", results / "three")
    set_column(results / "three", "correct", lambda row: row["sample_index"] >= 0 or row["correct"])
    (pair,) = compare(["one", "three"]).pairs
    assert others(pair).startswith("three is better by mean@4, maj@4")


def test_answers_without_pictures_have_the_interval_that_their_score_has(results: Path) -> None:
    """Wilson's, as both greedy accuracies of one seed have: here the two answer alike."""
    for path in results.glob("*/runs/seed_1"):
        shutil.rmtree(path)
    blind = "correct_without_pictures"
    set_column(results, blind, lambda row: row["correct"] if row["sample_index"] == GREEDY else None)
    (pair,) = compare(["one", "two"]).pairs
    metrics = {metric.name: metric for metric in pair.metrics}
    assert metrics[WITHOUT_PICTURES].first == metrics["greedy"].first
    assert metrics[WITHOUT_PICTURES].second == metrics["greedy"].second


def test_only_shared_seeds_are_paired_and_without_one_seeds_are_averaged(results: Path) -> None:
    (results / "two/runs/seed_1").rename(results / "two/runs/seed_7")
    (pair,) = compare(["one", "two"]).pairs
    assert pair.seeds == (0,)
    assert "seed 0 alone" in scope(pair)
    shutil.rmtree(results / "two/runs/seed_0")
    (pair,) = compare(["one", "two"]).pairs
    assert pair.seeds == ()
    assert "they share no seed" in scope(pair)


def test_what_cannot_be_compared_is_told_in_a_sentence(results: Path) -> None:
    (results / "empty").mkdir()
    for names, sentence in (
        (["one", "tow"], r"There is no experiment `tow` with scores in results: the nearest one is `two`\.$"),
        (["one", "empty"], "results/empty has no scores yet"),
        (["one", "one"], "Name two experiments or more"),
    ):
        with pytest.raises(UserError, match=sentence):
            compare(names)
    for path in (results / "two").glob("**/scores.json"):
        write_json(path, read_json(path) | {"extractor": "exact"})
    comparison = compare(["one", "two"])
    assert comparison.pairs == ()
    assert "have scored arithmetic with another extractor" in comparison.notes[0]


def test_an_at_names_the_policy_of_a_step_also_two_of_one_experiment(results: Path) -> None:
    for run in results.glob("two/runs/*/eval/*"):
        shutil.copytree(run / "base", run / "step_40")
    (pair,) = compare(["two@40", "two"]).pairs
    assert (pair.first, pair.second) == ("two@40", "two")
    assert pair.metrics[0].difference.value > 0
    assert compare(["one@base", "results/two@40"]).names == ("one@base", "two@40")
    with pytest.raises(UserError, match=r"results/one has no scores of step_40: add it to evaluation\.policies"):
        compare(["one@40", "two@40"])


def test_scores_of_a_kept_policy_of_an_earlier_training_are_read_by_nothing(results: Path) -> None:
    for task in results.glob("two/runs/*/eval/*"):
        run, scores = task.parents[1], shutil.copytree(task / "base", task / "step_40")
        write_json(run / "kept/manifest.json", {"policies": {"40": {}}})
        read = {f"results/two/runs/{run.name}/kept/manifest.json": sha256_of(run / "kept/manifest.json")}
        record = {"stage": "sample_kept", "experiment": "two", "inputs": read, "outputs": {}}
        write_json(scores / "completions.provenance.json", record)
    assert compare(["two@40", "two"]).names == ("two@40", "two")
    assert "step_40" in load_scores("two")["policy"].to_pylist()
    for manifest in results.glob("two/runs/*/kept/manifest.json"):
        write_json(manifest, {"policies": {"40": {}, "60": {}}})
    with pytest.raises(UserError, match="has no scores of step_40"):
        compare(["two@40", "two"])
    assert {*load_scores("two")["policy"].to_pylist()} == {"base", "trained"}


def test_the_chosen_policy_has_the_choice_in_its_intervals_on_either_side(results: Path) -> None:
    estimate = {"problems": 64, "value": 0.5, "low": 0.4, "high": 0.6}
    candidates = [
        {"policy": policy, "score": 0.5, "share": 0.5, "tasks": {"arithmetic": estimate}}
        for policy in ("step_40", "trained")
    ]
    choice = {
        "policy": "step_40",
        "candidates": candidates,
        "draws": [0, 1],
        "means": {"arithmetic": {"greedy": [0.375, 0.625]}},
    }
    for run in results.glob("*/runs/*"):
        shutil.copytree(run / "eval/arithmetic/trained", run / "eval/arithmetic/chosen")
        write_json(run / "chosen/choice.json", choice)
    (plain,), (pair,), (back,), (both,) = (
        compare(names).pairs
        for names in (
            ["two@base", "two"],
            ["two@base", "two@chosen"],
            ["two@chosen", "two@base"],
            ["one@chosen", "two@chosen"],
        )
    )
    greedy, held, turned = plain.metrics[0], pair.metrics[0], back.metrics[0]
    assert held.first == greedy.first
    assert held.second == turned.first == with_choice(greedy.second, 0.125, 0.95)
    assert held.difference == with_choice(greedy.difference, 0.125, 0.95, (-1, 1))
    assert turned.difference.high == pytest.approx(-held.difference.low)
    (alone,) = compare(["one", "two"]).pairs
    assert both.metrics[0].difference == with_choice(alone.metrics[0].difference, hypot(0.125, 0.125), 0.95, (-1, 1))
    assert pair.metrics[1] == plain.metrics[1], "a metric without a spread stays as it is"


def test_the_command_writes_a_table_json_and_a_page(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "compared.html"
    shown = CliRunner().invoke(app, ["compare", "one", "two", "--html", str(page)]).stdout
    told = json.loads(CliRunner().invoke(app, ["compare", "one", "two", "--json"]).stdout)
    assert told["pairs"][0]["verdict"].startswith("arithmetic: two is better")
    assert "two is better than one" in shown
    assert "two is better than one" in page.read_text()


def test_runtime_stands_apart_and_no_name_is_obeyed(results: Path) -> None:
    evil = '<script>alert("1")<\u202e'
    both = tuple(
        Difference(group=group, name=name, values=(evil, "2"))
        for group, name in (("parameters", "training.steps"), ("runtime", "runtime.training.threads"))
    )
    comparison = replace(compare(["one", "two"]), differences=both)
    screen = plain_console()
    with screen.capture() as captured:
        screen.print(*render_parts(comparison))
    _, what, runtime = re.split("What differs|Runtime settings that differ", captured.get())
    assert ("training.steps" in what, "threads" in what) == (True, False)
    assert "they change results only by rounding" in " ".join(runtime.split())
    assert "runtime.training.threads" in runtime
    page = render(comparison)
    places = [
        page.index(text) for text in ("training.steps", "they change results only by rounding", "training.threads")
    ]
    assert places == sorted(places)
    assert "<script" not in page
    assert "\u202e" not in page + captured.get()


@pytest.fixture
def two(made_up: Project) -> Project:
    """A finished experiment, and its equal `other`."""
    for top in ("data", "models", "results"):
        shutil.copytree(Path(top, made_up.name), Path(top, "other"))
    return made_up


def test_what_differs_is_found_in_parameters_data_code_and_environment(two: Project) -> None:
    assert differences([two.name, "other"]) == []
    provenance = Path(str(two.provenance("train")).replace(two.name, "other"))
    record = read_json(provenance)
    record["params"]["training"]["steps"] = 7
    record["runtime"] = {"training": {"micro_batch_size": 8}}
    record["environment"]["torch"] = "2.14.0"
    write_json(provenance, record | {"code": "c0de" * 16})
    card = Path(str(two.provenance("prepare")).replace(two.name, "other"))
    record = read_json(card)
    path = next(path for path in record["outputs"] if path.endswith("test.parquet"))
    write_json(card, record | {"outputs": record["outputs"] | {path: "d" * 64}})
    found = [(each.group, each.name, each.values[1]) for each in differences([two.name, "other"])]
    task = two.params.experiment.train
    assert found == [
        ("parameters", "training.steps", "7"),
        ("data", f"{task}/test.parquet", "d" * 12),
        ("code", "stage train", "c0de" * 3),
        ("environment", "torch", "2.13.0, 2.14.0"),
        ("runtime", "runtime.training.micro_batch_size", "8"),
    ]


def test_an_unfinished_experiment_is_named_and_compared_by_what_both_have(two: Project) -> None:
    for stage in ("score", "report"):
        Path(str(two.provenance(stage)).replace(two.name, "other")).unlink()
    names = [two.name, "other"]
    (said,) = unfinished(names)
    assert said == "other is unfinished, without report yet: the differences are those of stages that all have."
    assert differences(names) == []
    for path in Path("results/other").glob("**/scores.provenance.json"):
        path.unlink()
    assert next(unfinished(names)).startswith("other is unfinished, without score, report yet:")
    assert differences(names) == []


def test_the_file_of_code_that_differs_is_named_where_a_job_was_planned_with_it(two: Project) -> None:
    two.change_code("score", "src/dagrpo/pipeline/stages/score.py", "0" * 64)
    (found,) = differences([two.name, "other"])
    assert (found.name, found.values[0]) == ("src/dagrpo/pipeline/stages/score.py", "0" * 12)
    for file in Path(".state/jobs").glob("code-*"):
        file.unlink()
    assert [each.name for each in differences([two.name, "other"])] == ["stage score"]
