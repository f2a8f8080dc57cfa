"""The components of the reward on the page: curves, correlations, and a warning when one is exploited."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.report.synthetic import Files, list_again, make_experiment, page_of

from dagrpo.report.components import correlations, reward_components
from dagrpo.report.config import Report
from dagrpo.report.curves import curves
from dagrpo.report.page import render
from dagrpo.utils.tables import read_parquet, write_parquet

STEPS = 80
REPORT = Report(completions=2, smoothing=5)


def _add_components(files: Files, accuracy: list[float]) -> Files:
    """Accuracy as given, a form that is learned, and a penalty of length; of one trajectory the form is the answer's opposite."""
    for path, manifest in zip(files.metrics, files.rollouts, strict=True):
        table = read_parquet(path)
        noise = np.random.default_rng(0).normal(0, 0.01, (3, STEPS))
        own = {
            "reward/accuracy": np.array(accuracy) + noise[0],
            "reward/component/accuracy": np.array(accuracy) + noise[0],
            "reward/component/format": np.linspace(0.2, 1.0, STEPS) + noise[1],
            "reward/component/overlong": np.full(STEPS, -0.1) + noise[2],
        }
        table = table.drop_columns([name for name in own if name in table.column_names])
        for name, values in own.items():
            table = table.append_column(name, pa.array(values))
        write_parquet(path, table)
        for step in manifest.parent.glob("step_*"):
            rows = read_parquet(step)
            found = [
                [("accuracy", float(right)), ("format", float(not right)), ("overlong", 0.0)]
                for right in rows["correct"].to_pylist()
            ]
            kind = pa.map_(pa.string(), pa.float32())
            write_parquet(step, rows.append_column("components", pa.array(found, kind)))
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


def test_a_component_that_rises_while_accuracy_falls_is_a_banner(tmp_path: Path) -> None:
    falling = [*np.linspace(0.4, 0.7, STEPS // 2), *np.linspace(0.7, 0.3, STEPS - STEPS // 2)]
    page = page_of(_add_components(make_experiment(tmp_path, steps=STEPS), falling), REPORT)
    (doubt,) = page.doubts
    assert doubt.startswith("Seed 0: the component format rose from 0.")
    assert "the policy seems to exploit it" in render(page)


def test_a_single_component_has_no_figure(experiment: Files) -> None:
    assert reward_components(curves(experiment.read()), None, 3) is None
