"""The components of the reward on the page: curves, correlations, and a warning when one is exploited."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.report.synthetic import Files, list_again, make_experiment, page_of

from dagrpo.report.components import correlations, exploited, reward_components
from dagrpo.report.config import Report
from dagrpo.report.curves import curves
from dagrpo.report.page import render
from dagrpo.utils.tables import read_parquet, write_parquet

STEPS = 80
REPORT = Report(completions=2, smoothing=5)


def _add_components(files: Files, accuracy: list[float]) -> Files:
    """Accuracy as given, a form that is learned, and a penalty of length; of one trajectory the form is the answer's opposite."""
    (path,), (manifest,) = files.metrics, files.rollouts
    noise = np.random.default_rng(0).normal(0, 0.01, (3, STEPS))
    table = read_parquet(path).drop_columns(["reward/accuracy"])
    for name, values in (
        ("reward/accuracy", np.array(accuracy) + noise[0]),
        ("reward/component/accuracy", np.array(accuracy) + noise[0]),
        ("reward/component/format", np.linspace(0.2, 1.0, STEPS) + noise[1]),
        ("reward/component/overlong", np.full(STEPS, -0.1) + noise[2]),
    ):
        table = table.append_column(name, pa.array(values))
    write_parquet(path, table)
    for step in manifest.parent.glob("step_*"):
        rows = read_parquet(step)
        right = rows["correct"].to_pylist()
        found = [[("accuracy", float(each)), ("format", float(not each)), ("overlong", 0.0)] for each in right]
        write_parquet(step, rows.append_column("components", pa.array(found, pa.map_(pa.string(), pa.float32()))))
    list_again(manifest)
    return files


def test_the_page_has_a_curve_of_each_component_and_their_correlations(tmp_path: Path) -> None:
    files = _add_components(make_experiment(tmp_path, steps=STEPS), [0.5] * STEPS)
    inputs = files.read()
    found = correlations(inputs, curves(inputs), 5)
    assert found is not None
    assert found.names == ("accuracy", "format", "overlong")
    assert found.steps == (STEPS - 4, STEPS)
    assert found.values[1, 0] < -0.999
    assert np.isnan(found.values[2, 0])
    page = page_of(files, REPORT)
    (figure,) = page.training_figures
    assert "In the last step: accuracy 0." in figure.description
    text = render(page)
    assert "Components of the reward" in text
    assert "format and accuracy: correlation -1.000" in text
    assert not page.doubts


def test_a_component_that_rises_while_accuracy_falls_is_a_doubt(tmp_path: Path) -> None:
    falling = [*np.linspace(0.4, 0.7, STEPS // 2), *np.linspace(0.7, 0.3, STEPS - STEPS // 2)]
    files = _add_components(make_experiment(tmp_path, steps=STEPS), falling)
    (doubt,) = exploited(curves(files.read()))
    assert doubt.startswith("Seed 0: the component format rose from 0.")
    assert "the policy seems to exploit it" in doubt


def test_a_single_component_has_no_figure(experiment: Files) -> None:
    assert reward_components(curves(experiment.read()), None, 3) is None
