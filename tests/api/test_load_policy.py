"""What import dagrpo offers to a notebook: the model of a run or a folder, its tables, and a sentence where there is none."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.api.conftest import NAME

import dagrpo
from dagrpo.api.policy import split_policy
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.source import open_tensors
from dagrpo.config.places import ROOT
from dagrpo.core.errors import UserError
from dagrpo.utils.tables import read_parquet, write_parquet


@pytest.mark.parametrize(("which", "dtype"), [("trained", torch.bfloat16), ("base", torch.float32)])
def test_a_run_has_a_trained_and_a_base_policy_in_the_type_of_their_files(
    project: Path, which: str, dtype: torch.dtype
) -> None:
    model, tokenizer = dagrpo.load_policy(f"{NAME}/seed_0", which=which, root=project)  # type: ignore[arg-type]
    assert model.dtype == dtype
    assert not model.training
    assert tokenizer.decode(tokenizer.encode("1+1=")) == "1+1="


def test_a_run_is_named_by_its_folder_too_and_a_checkpoint_by_its_own(project: Path) -> None:
    run = project / f"results/{NAME}/runs/seed_0"
    by_run, _ = dagrpo.load_policy(run)
    by_folder, _ = dagrpo.load_policy(run / "exported", dtype=torch.float32)
    assert by_folder.dtype == torch.float32
    shutil.rmtree(project / f"results/{NAME}/runs/seed_1")
    by_experiment, _ = dagrpo.load_policy(NAME, root=project)  # of one seed
    for name, weight in by_run.state_dict().items():
        assert torch.equal(weight.float(), by_folder.state_dict()[name])
        assert torch.equal(weight, by_experiment.state_dict()[name])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nothing", f"`nothing` is neither a folder nor an experiment in .*results: there is only {NAME}"),
        (
            "/no/such/place",
            f"`/no/such/place` is neither a folder nor an experiment in .*results: there is only {NAME}",
        ),
        ("models/typo", f"`models/typo` is neither a folder nor an experiment in .*results: there is only {NAME}"),
        (NAME, f"{NAME} is no single run: name one of {NAME}/seed_0, {NAME}/seed_1"),
        (f"{NAME}/seed_7", f"{NAME}/seed_7 is no single run: name one of {NAME}/seed_0, {NAME}/seed_1"),
        (f"{NAME}/seed_1", f"exported is not there: run {NAME} to the end of its stage export"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(project: Path, source: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dagrpo.load_policy(source, root=project)
    with pytest.raises(UserError, match="no policy `best`: ask for base, trained, chosen"):
        dagrpo.load_policy(NAME, which="best", root=project)  # type: ignore[arg-type]


@pytest.fixture
def kept(project: Path) -> Path:
    """The folder of seed 0, which has kept the policies of steps 2 and 10: those of a run that began in another type."""
    run = project / f"results/{NAME}/runs/seed_0"
    convert(run / "sft", run / "initial", Checkpoint(format="dcp"))
    for step in (2, 10):
        write(run / "kept", run / "initial", step, open_tensors(run / "exported"))
    return run


def test_the_policy_of_a_kept_step_is_named_with_an_at(project: Path, kept: Path) -> None:
    shutil.rmtree(project / f"results/{NAME}/runs/seed_1")
    expected, _ = dagrpo.load_policy(kept / "exported")
    for source in (f"{NAME}@10", f"{NAME}/seed_0@step_2", f"{NAME}@trained"):
        model, _ = dagrpo.load_policy(source, root=project)
        assert all(torch.equal(weight, expected.state_dict()[name]) for name, weight in model.state_dict().items())
    assert list((project / ".state").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("seed_0@4", r"seed_0 has kept no policy of step 4, but of 2, 10: training\.keep_policies chooses the steps"),
        ("seed_1@4", r"seed_1.kept is not there: run .* to the end of its stage train"),
        ("seed_0@last", r"'last' is no policy of .*seed_0: write a kept step, such as .*seed_0@40, or base, trained"),
        ("seed_0@", r"'' is no policy"),
        ("seed_0@step_\u0664", "is no policy"),
        ("seed_0@\u0664", "is no policy"),
        ("seed_0@0", "is no policy"),
        ("seed_0@123456789", "is no policy"),
        ("seed_0/exported@2", r"exported is the folder of one checkpoint"),
    ],
)
def test_a_step_that_is_not_kept_is_refused_with_those_that_are(
    project: Path, kept: Path, name: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        dagrpo.load_policy(kept.parent / name, root=project)


def test_a_folder_with_an_at_in_its_name_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "model@40").mkdir()
    assert split_policy(str(tmp_path / "model@40")) == (str(tmp_path / "model@40"), None)
    assert split_policy("tiny@0040") == split_policy("tiny@step_0040") == ("tiny", "step_40")


def test_a_folder_that_is_no_checkpoint_or_one_of_another_layout_is_refused(project: Path) -> None:
    exported = project / f"results/{NAME}/runs/seed_0/exported"
    with pytest.raises(UserError, match="is not a checkpoint in any format"):
        dagrpo.load_policy(project / "results")
    convert(exported, project / "sharded", Checkpoint(format="dcp"))
    with pytest.raises(UserError, match=r"is a dcp checkpoint, .* `dagrpo convert .*sharded NEW_FOLDER --to hf`"):
        dagrpo.load_policy(project / "sharded")


def test_damaged_weights_are_not_loaded(project: Path) -> None:
    weights = project / f"results/{NAME}/runs/seed_0/exported/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model.safetensors is changed"):
        dagrpo.load_policy(f"{NAME}/seed_0", root=project)


def test_code_beside_a_model_is_not_run(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "downloaded"
    shutil.copytree(project / f"results/{NAME}/runs/seed_0/exported", folder)
    (folder / "manifest.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "new_kind",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match=r"transformers has no model for its config.json"):
        dagrpo.load_policy(folder)
    assert not (tmp_path / "ran").exists()


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


def test_results_that_are_not_there_are_told_in_a_sentence(project: Path) -> None:
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
