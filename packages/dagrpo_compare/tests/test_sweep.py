"""`dagrpo sweep`: the finished cells of a sweep side by side, paired, with all comparisons counted."""

import json
import shutil
from pathlib import Path

import pytest
from packages.dagrpo_compare.tests.conftest import Scored
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import Params, parse
from dagrpo.config.sweeps import read_sweep
from dagrpo.pipeline.override_runs import cell_runs
from dagrpo_compare.sweep.command import headline, scope
from dagrpo_compare.sweep.results import grouped, read_results, value_in_words

RATE, KL = "training.learning_rate", "algorithm.kl.coefficient"
ACCURACY = {0.001: 0.3, 0.002: 0.3, 0.004: 0.95}  # by learning rate


@pytest.fixture
def params(scored: Scored) -> Params:
    """The experiment of params.yaml, with a sweep `rates` of six cells, five of them with scores."""
    params = parse({"experiment": {"name": "tiny"}})
    Path("params.yaml").write_text(params_yaml(params))
    Path("presets/sweeps").mkdir(parents=True)
    Path("presets/sweeps/rates.yaml").write_text(f"grid: {{{RATE}: {[*ACCURACY]}, {KL}: [0.0, 0.01]}}\n")
    for cell in cell_runs(read_sweep("rates"), params)[:-1]:
        scored(cell.run.folder, ACCURACY[cell.values[RATE]])
    return params


def test_cells_are_compared_with_the_first_one_by_paired_differences(params: Params) -> None:
    results = read_results("rates", params)
    (task,) = results.tasks
    assert task.confidence_together == pytest.approx(1 - 0.05 / 4)
    reference, same, *_, best = task.scores
    assert reference.folder == task.reference
    assert same.difference is not None
    assert same.difference.value == 0
    assert best.difference is not None
    assert best.together is not None
    assert best.together.low <= best.difference.low
    assert best.difference.high <= best.together.high
    assert headline(task).startswith(f"arithmetic: {best.folder} scored highest, ")
    assert "differs from the reference" in headline(task)
    assert "4 comparisons: with 95% intervals, 0.2 of them would exclude 0 by chance alone" in scope(task)
    assert "(2 seeds, 40 problems)" in scope(task)
    means = {(each.axis, each.value): each for each in task.means}
    assert {key: each.cells for key, each in means.items()} == {
        (RATE, 0.001): 2, (RATE, 0.002): 2, (RATE, 0.004): 1, (KL, 0.0): 3, (KL, 0.01): 2,
    }  # fmt: skip
    of_first = [each.score.value for each in task.scores if each.values[RATE] == 0.001]
    assert means[RATE, 0.001].score.value == pytest.approx(sum(of_first) / 2)
    assert [values for _, values in results.unfinished] == [{RATE: 0.004, KL: 0.01}]


def test_a_cell_with_the_parameters_of_the_file_is_the_reference(params: Params) -> None:
    folder = cell_runs(read_sweep("rates"), params)[2].run.folder
    shutil.move(f"results/{folder}", "results/tiny")
    rates = {"training": {"learning_rate": 0.002}, "algorithm": {"kl": {"coefficient": 0.0}}}
    (task,) = read_results("rates", parse({"experiment": {"name": "tiny"}} | rates)).tasks
    assert task.reference == "tiny"


def test_seeds_of_the_sweep_make_the_cell_with_the_values_of_the_file_no_other(params: Params) -> None:
    file = parse({"experiment": {"name": "tiny", "seeds": [7]}, "training": {"learning_rate": 0.002}})
    Path("presets/sweeps/rates.yaml").write_text(f"seeds: [0, 1]\ngrid: {{{RATE}: {[*ACCURACY]}}}\n")
    for cell in cell_runs(read_sweep("rates"), file):
        folder = Path("results") / cell.run.folder / "runs"
        shutil.copytree(next(Path("results").glob("tiny~*/runs")), folder, dirs_exist_ok=True)
    (task,) = read_results("rates", file).tasks
    assert [each.folder == task.reference for each in task.scores] == [False, True, False]


def test_the_command_writes_a_table_json_and_a_page(params: Params, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["sweep", "rates"]).stdout
    assert "snakemake --cores all target --config sweep=rates" in shown.replace("\n", "")
    page = tmp_path / "page.html"
    told = CliRunner().invoke(app, ["sweep", "rates", "--json", "--html", str(page)]).stdout
    assert len(json.loads(told)["tasks"][0]["scores"]) == 5
    assert "<svg" in page.read_text()
    assert "<script" not in page.read_text()


def test_values_are_words_of_params_yaml_numbers_in_their_order_and_words_in_that_of_the_sweep() -> None:
    assert [value_in_words(value) for value in (0.00003, True, None, [1, 2])] == ["3e-05", "true", "", "[1, 2]"]
    assert value_in_words({"name": "gspo", "clip_low": 0.0003}) == "gspo, clip_low 0.0003"
    assert [value for value, _ in grouped([(3, None), (1, None), (3, None)])] == [1, 3]
    assert [value for value, _ in grouped([("b", None), ("a", None)])] == ["b", "a"]
