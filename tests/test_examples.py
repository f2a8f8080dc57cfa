"""Every example has parameters that parse, fit their task and fit the machine that they are meant for."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.config.presets import composed
from dagrpo.pipeline.validation import require_fitting_tasks

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/params.yaml"))
ON_GPUS = {"gsm8k", "judge", "reward_model", "several_gpus"}


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "examples/own_task"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_parameters_of_an_example_parse_and_fit_its_task(name: str) -> None:
    params = composed([f"examples/{name}/params.yaml"])
    require_fitting_tasks(params)
    assert params.experiment.name == name
    assert params.runtime.training.require_room


def test_an_example_finds_its_files_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    judge, own_task = (
        composed([str(ROOT / f"examples/{name}/params.yaml")], ROOT / "presets") for name in ("judge", "own_task")
    )
    (rubric,), rows = judge.reward.files, own_task.data.mirror
    assert Path(rubric).is_file()
    assert Path(str(rows)).is_dir()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "gsm8k" else pytest.mark.nightly) for name in EXAMPLES]
)
def test_an_example_fits_the_machine_that_it_is_meant_for(name: str) -> None:
    machine = ["--gpu", "H100"] if name in ON_GPUS else ["--memory", "16"]
    result = CliRunner().invoke(app, ["plan", f"examples/{name}/params.yaml", *machine])
    assert result.exit_code == 0, result.output


def test_a_run_is_compared_with_the_recorded_curve_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import curve  # type: ignore[import-not-found]

    with (ROOT / "examples/tool_agent/curve.csv").open() as file:
        rows = [row | {"seed": "0"} for row in csv.DictReader(file)]

    def check(change: float, steps: int = len(rows)) -> None:
        report = tmp_path / "tool_agent/report"
        report.mkdir(parents=True, exist_ok=True)
        with (report / "curves.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            later = {row["step"] for row in rows[len(rows) // 2 :]}
            writer.writerows(
                row | {"reward/mean": str(float(row["reward/mean"]) + change * (row["step"] in later))}
                for row in rows[:steps]
            )
        curve.check("tool_agent", tmp_path)

    check(0.1)
    with pytest.raises(SystemExit, match=r"by at most 0\.200"):
        check(-0.2)
    with pytest.raises(SystemExit, match=r"the run has 3 steps and curve\.csv 40"):
        check(0.0, steps=3)


def test_the_reward_of_own_task_counts_right_digits() -> None:
    import roman  # type: ignore[import-not-found]
    from tests.rewards.attempts import attempt

    from dagrpo.core.trajectory import GradedTrajectory
    from dagrpo.core.types import Score

    def value(extracted: str | None) -> float:
        score = Score(extracted=extracted, verdict="wrong", verifier="gsm8k")
        graded = GradedTrajectory(trajectory=attempt(ground_truth="942"), score=score)
        return float(roman.right_digits(graded, roman.Config()))

    assert [value(text) for text in ("942", "952", "42", None)] == [1.0, 2 / 3, 0.0, 0.0]
