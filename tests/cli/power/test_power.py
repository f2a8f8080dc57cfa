"""`dagrpo power`: seeds and problems that show a difference, from finished runs."""

import json
import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import make_experiment
from typer.testing import CliRunner, Result

from dagrpo.cli.application import app
from dagrpo.cli.power import compute_power
from dagrpo.core.errors import UserError


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder results/ of the working directory, with an experiment `one` of three seeds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    make_experiment(tmp_path / "one", seeds=(0, 1, 2), trained_accuracy=0.5)
    shutil.copytree(tmp_path / "one/results/tiny", tmp_path / "results/one/runs")
    return tmp_path / "results"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["power", *arguments])


def test_a_trained_policy_is_compared_with_its_base_policy(results: Path) -> None:
    (found,) = compute_power(["one"], "trained", wanted=0.05)
    assert (found.first, found.second, found.seeds, found.problems) == ("one (base)", "one (trained)", 3, 40)
    assert [plan.seeds for plan in found.plans] == [2, 3, 5, 10, 20]
    of_three = found.plans[1]
    assert of_three.detectable == found.detectable
    assert of_three.problems is None or (of_three.problems > 40) == (found.detectable > 0.05)


def test_one_seed_is_planned_alone_and_said_to_be_too_few(results: Path) -> None:
    for seed in (1, 2):
        shutil.rmtree(results / f"one/runs/seed_{seed}")
    (found,) = compute_power(["one"], "trained", wanted=None)
    assert [plan.seeds for plan in found.plans] == [1]
    assert found.wanted == pytest.approx(abs(found.difference))
    assert "One seed says nothing of the variation between seeds" in run("one").stdout


def test_equal_runs_have_no_difference_to_plan_for(results: Path) -> None:
    shutil.copytree(results / "one", results / "two")
    (found,) = compute_power(["one", "two"], "trained", wanted=None)
    assert (found.difference, {plan.problems for plan in found.plans}) == (0.0, {None})


def test_the_command_prints_a_table_and_json(results: Path) -> None:
    shown = run("one", "--points", "5").stdout
    assert "arithmetic: one (trained) against one (base), greedy accuracy" in shown
    assert "problems that show 5.0 points" in shown
    assert json.loads(run("one", "--json").stdout)[0]["variance"]["is_of_one_seed"] is False


def test_what_cannot_be_compared_is_refused(results: Path) -> None:
    with pytest.raises(UserError, match="Name one experiment or two"):
        compute_power(["one", "two", "three"], "trained", None)
    with pytest.raises(UserError, match="There is no experiment `two`"):
        compute_power(["one", "two"], "trained", None)
