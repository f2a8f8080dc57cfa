"""A metric takes two places: the code that computes it, and its definition."""

from pathlib import Path

import pytest
from docs.site import pages
from docs.site.pages import with_tables
from packages.dagrpo_mlflow.tests.conftest import execution, stage_record

from dagrpo.core import metrics
from dagrpo.core.errors import UserError
from dagrpo.core.metrics import METRICS, Figure, Metric
from dagrpo.pipeline.curve import Curve
from dagrpo.pipeline.dvc import file
from dagrpo.pipeline.dvc.file import CURVES, plots
from dagrpo.report import tables
from dagrpo.report.figures import parts
from dagrpo.report.tables import glossary
from dagrpo_mlflow.read import contents_of

PAGE = "# Metrics\n\n## policy/\n\nProse stays.\n\n| metric | old |\n|---|---|\n| `policy/gone` | x |\n\n## sft/\n\n"
HEADINGS = "".join(f"## {group}/\n\n" for group in sorted({each.group for each in METRICS} - {"policy", "sft"}))


def _metric(figure: Figure) -> Metric:
    return Metric(
        name="policy/spread_of_weights",
        unit="ratio",
        better="lower",
        label="Spread of weights",
        figure=figure,
        meaning="Largest weight over the smallest.",
        reading="near 1",
        remedy="lower the learning rate",
    )


def _define(monkeypatch: pytest.MonkeyPatch, metric: Metric) -> None:
    for module in (metrics, file, parts, tables, pages):
        monkeypatch.setattr(module, "METRICS", (*METRICS, metric))


def test_a_defined_metric_is_in_dvc_plots_glossary_mlflow_and_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _define(monkeypatch, _metric("learning_curve"))
    (plot,) = (each["Spread of weights, ratio"] for each in plots() if "Spread of weights, ratio" in each)
    assert plot["y"] == {CURVES: "policy/spread_of_weights"}
    assert ("Spread of weights", "Largest weight over the smallest. Lower is better.") in glossary(
        ["policy/spread_of_weights"], has_turns=False
    )
    log = tmp_path / "sft.log"
    Curve(log).add(1, {"policy/spread_of_weights": 2.0, "policy/of_a_plug_in": 1.0})
    rows = contents_of(execution(stage_record("sft"), log=log, started=0, ended=10**15)).tables["metrics"]
    meaning = {"meaning": "Largest weight over the smallest.", "unit": "ratio", "better": "lower"}
    assert rows == [{"metric": "policy/spread_of_weights", **meaning}]
    page = with_tables(PAGE + HEADINGS)
    assert (
        "| `policy/spread_of_weights` | Largest weight over the smallest. (ratio; lower is better) | near 1 |" in page
    )
    assert "Prose stays." in page
    assert "policy/gone" not in page
    assert page.endswith("\n\n## sft/\n\n" + HEADINGS), "a section without a table is left alone"
    with pytest.raises(UserError, match=r"no heading `## sft/`, the group of the metric sft/.*"):
        with_tables(PAGE.replace("## sft/", "") + HEADINGS)
