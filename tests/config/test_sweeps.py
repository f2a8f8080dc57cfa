"""Sweeps: a grid, a list or random draws become cells; a mistake in a file is one sentence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.config.places import PRESETS
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params
from dagrpo.config.sweeps import Range, Sweep, known, read_sweep
from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.pipeline.override_runs import cell_runs

RATE, KL = "training.learning_rate", "algorithm.kl.coefficient"
ROOT = Path(__file__).parents[2]


def sweep(**values: object) -> Sweep:
    return Sweep.model_validate(values)


def drawn(count: int, **axes: object) -> list[dict[str, object]]:
    return [dict(cell) for cell in sweep(random={"count": count, "seed": 3, "axes": axes}).all_cells()]


def test_a_grid_has_every_combination_in_order() -> None:
    cells = sweep(grid={RATE: [0.1, 0.2], KL: [0.0, 0.01]}).all_cells()
    assert [tuple(cell.values()) for cell in cells] == [(0.1, 0.0), (0.1, 0.01), (0.2, 0.0), (0.2, 0.01)]


def test_shares_of_a_mixture_are_an_axis_and_each_cell_another_run_with_the_same_tasks() -> None:
    file = Params(
        experiment=Experiment(name="mixed", train={"arithmetic": 1, "gsm8k": 1}, tasks=["arithmetic", "gsm8k"])
    )
    cells = cell_runs(
        sweep(grid={"experiment.train": [{"arithmetic": 1, "gsm8k": share} for share in (0, 1, 2)]}), file
    )
    assert [cell.params.experiment.shares for cell in cells] == [
        {"arithmetic": 1.0},
        {"arithmetic": 0.5, "gsm8k": 0.5},
        {"arithmetic": 1 / 3, "gsm8k": 2 / 3},
    ]
    assert [cell.run.folder == "mixed" for cell in cells] == [False, True, False]
    with pytest.raises(UserError, match="must list exactly train and evaluate"):
        cell_runs(sweep(grid={"experiment.train": ["math"]}), file)


def test_a_list_has_its_cells_each_once_and_all_of_their_keys_as_axes() -> None:
    found = sweep(cells=[{RATE: 0.1}, {KL: 0.01}, {RATE: 0.1}])
    assert found.all_cells() == [{RATE: 0.1}, {KL: 0.01}]
    assert found.axes == [RATE, KL]


def test_more_random_cells_and_another_axis_leave_the_former_draws_as_they_are() -> None:
    axes = {RATE: {"low": 1e-5, "high": 1e-3, "log": True}}
    few, more = drawn(3, **axes), drawn(5, **axes)
    assert more[:3] == few
    wider = drawn(3, **axes, **{KL: [0.0, 0.001, 0.01]})
    assert [cell[RATE] for cell in wider] == [cell[RATE] for cell in few]


@given(st.floats(0, 1, exclude_max=True))
def test_a_draw_stays_in_its_range(share: float) -> None:
    assert 1e-5 <= Range(low=1e-5, high=1e-3, log=True).value(share) <= 1e-3
    whole = Range(low=1.0, high=8.0, integer=True).value(share)
    assert whole in range(1, 9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grid: {training.steps: [1]}\ncells: [{training.steps: 2}]", "this one has grid and cells"),
        ("seeds: [0]", "this one has none"),
        ("grid: {experiment.evaluate: [[gsm8k]]}", "experiment.evaluate cannot vary between cells"),
        ("grids: {training.steps: [1]}", "unknown key `grids`: .*`grid`"),
        ("training.learning_rate: [1.0e-6]", r"`grid: \{training.learning_rate: \[...\]\}`"),
        ("training: {steps: [1, 2]}", r"`training` stands below `grid`, .*`grid: \{training.KEY: \[...\]\}`"),
        ("random: {count: 2, axes: {training.steps: {low: 3, high: 1}}}", "low is below high"),
    ],
)
def test_a_mistake_in_a_file_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_sweep(str(path))


@pytest.mark.parametrize("name", known(ROOT / PRESETS))
def test_every_sweep_of_the_presets_can_be_read(name: str) -> None:
    assert read_sweep(name, ROOT / PRESETS).all_cells()


def test_the_sweep_of_ratios_fits_its_experiment_which_is_one_of_the_cells() -> None:
    file = composed(["qwen2_5_0_5b_gsm8k_math"], ROOT / PRESETS)
    sweep = read_sweep("mixture", ROOT / PRESETS)
    cells = cell_runs(sweep.model_copy(update={"seeds": None}), file)
    assert [cell.params.experiment.shares.get("gsm8k", 0.0) for cell in cells] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [cell.run.folder == file.experiment.name for cell in cells] == [False, False, True, False, False]


@pytest.mark.parametrize(("low", "high"), [(1.2345e-5, 1e-3), (1e-5, 1.2345e-3), (1.2345, 1.2346)])
def test_rounding_leads_out_of_no_range(low: float, high: float) -> None:
    both = [Range(low=low, high=high, log=log).value(share) for log in (False, True) for share in (0.0, 1.0)]
    assert all(low <= value <= high for value in both)
