"""What `import dagrpo` offers to a notebook, and that the notebook in docs/ runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import NAME

import dagrpo
from dagrpo.config.places import ROOT
from dagrpo.core.errors import UserError
from dagrpo.utils.tables import read_parquet, write_parquet

NOTEBOOK = ROOT / "docs/notebook.ipynb"


def test_scores_are_a_row_per_completion_of_every_seed_and_policy(project: Path) -> None:
    scores = dagrpo.load_scores(NAME, root=project)
    assert scores.column_names[:4] == ["seed", "policy", "task", "problem_index"]
    assert scores.num_rows == 2 * 2 * 40 * 5  # seeds, policies, problems, one greedy and four sampled
    frame = scores.to_pandas()
    one = read_parquet(project / f"results/{NAME}/runs/seed_1/eval/arithmetic/base/scores.parquet")
    mine = frame[(frame["seed"] == 1) & (frame["policy"] == "base")]
    assert mine["correct"].tolist() == one["correct"].to_pylist()


def test_metrics_are_a_row_per_step_and_a_figure_that_a_seed_lacks_is_null(project: Path) -> None:
    path = project / f"results/{NAME}/runs/seed_1/metrics.parquet"
    write_parquet(path, read_parquet(path).drop_columns(["policy/entropy"]))
    metrics = dagrpo.load_metrics(NAME, root=project)
    assert metrics.column_names[:2] == ["seed", "step"]
    assert metrics["seed"].to_pylist() == [0] * 12 + [1] * 12
    assert metrics["policy/entropy"].null_count == 12


def test_rollouts_are_those_of_the_steps_and_seeds_that_are_asked_for(project: Path) -> None:
    rollouts = dagrpo.load_rollouts(NAME, steps=[3, 5], seeds=[1], root=project)
    assert set(rollouts["step"].to_pylist()) == {3, 5}
    assert set(rollouts["seed"].to_pylist()) == {1}
    assert set(dagrpo.load_rollouts(NAME, root=project)["step"].to_pylist()) == set(range(1, 13))


def test_what_is_not_there_is_told_in_a_sentence(project: Path) -> None:
    with pytest.raises(UserError, match=f"There is no experiment `tiny` in .*results: the nearest one is `{NAME}`"):
        dagrpo.load_scores("tiny", root=project)
    with pytest.raises(UserError, match="has no seed 7: it has 0, 1"):
        dagrpo.load_rollouts(NAME, seeds=[7], root=project)
    with pytest.raises(UserError, match=r"step_00099.parquet is missing"):
        dagrpo.load_rollouts(NAME, steps=[99], root=project)


def test_importing_dagrpo_imports_nothing_heavy_and_finds_no_other_name() -> None:
    code = "import dagrpo, sys; print({'pyarrow', 'torch', 'dagrpo.api.results'} & set(sys.modules)); dagrpo.load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), timeout=120)
    assert done.stdout == "set()\n"
    assert "has no attribute 'load'" in done.stderr


@pytest.mark.nightly
def test_the_notebook_runs(project: Path) -> None:
    """Its code in one process, as a kernel would run it; what it shows is not looked at."""
    sources = ["".join(cell["source"]) for cell in _code_cells()]
    assert len(sources) > 3
    program = project / "notebook.py"
    program.write_text("\n\n".join(sources))
    done = subprocess.run(
        [sys.executable, program], cwd=project, capture_output=True, text=True, env=_environment(), timeout=300
    )
    assert done.returncode == 0, done.stderr


def _code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"}
