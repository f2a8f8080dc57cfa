"""`dagrpo power`: seeds and problems that show a difference, from finished runs."""

import json

import pytest
from packages.dagrpo_compare.tests.conftest import Scored
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.core.errors import UserError
from dagrpo_compare.power import compute_power


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, ["power", *arguments]).stdout


def test_a_trained_policy_is_compared_with_its_base_policy(scored: Scored) -> None:
    scored("one", 0.5, seeds=3)
    (found,) = compute_power(["one"], "trained", wanted=0.05)
    assert (found.first, found.second, found.seeds, found.problems) == ("one (base)", "one (trained)", 3, 40)
    assert [plan.seeds for plan in found.plans] == [2, 3, 5, 10, 20]
    of_three = found.plans[1]
    assert of_three.detectable == found.detectable
    assert of_three.problems is None or (of_three.problems > 40) == (found.detectable > 0.05)
    shown = run("one", "--points", "5")
    assert "arithmetic: one (trained) against one (base), greedy accuracy" in shown
    assert "problems that show 5.0 points" in shown
    assert json.loads(run("one", "--json"))[0]["variance"]["is_of_one_seed"] is False


def test_one_seed_is_planned_alone_and_equal_runs_have_no_difference_to_plan_for(scored: Scored) -> None:
    for name in ("one", "two"):
        scored(name, 0.5, seeds=1)
    (found,) = compute_power(["one"], "trained", wanted=None)
    assert [plan.seeds for plan in found.plans] == [1]
    assert found.wanted == pytest.approx(abs(found.difference))
    assert "One seed says nothing of the variation between seeds" in run("one")
    (equal,) = compute_power(["one", "two"], "trained", wanted=None)
    assert (equal.difference, {plan.problems for plan in equal.plans}) == (0.0, {None})
    with pytest.raises(UserError, match="Name one experiment or two"):
        compute_power(["one", "two", "three"], "trained", None)
