"""Presets combine: a model, a task, an algorithm, hardware, each laid over the one before."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from dagrpo.config import places
from dagrpo.config.overlay import configuration_of
from dagrpo.config.presets import composed, experiments, known, name_no_task, preset_text
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.supervisor import whole_params
from dagrpo.pipeline.validation import require_fitting_tasks

PRESETS = Path(__file__).parents[2] / "presets"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("models", "tasks", "experiments", "hardware"):
        (tmp_path / kind).mkdir()
    (tmp_path / "models/small.yaml").write_text("model: {name: small}\nsft: {steps: 0}\n")
    (tmp_path / "tasks/sums.yaml").write_text("training: {steps: 7}\n")
    (tmp_path / "hardware/box.yaml").write_text("runtime: {training: {micro_batch_size: 2}}\n")
    (tmp_path / "experiments/first.yaml").write_text("use: [small, sums]\nexperiment: {name: first}\nsft: {steps: 3}\n")
    return tmp_path


def test_a_study_has_presets_of_its_own_which_win(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PRESETS", folder)
    monkeypatch.chdir(tmp_path)
    own = Path("presets/models")
    own.mkdir(parents=True)
    for name in ("small", "large"):
        (own / f"{name}.yaml").write_text(f"model: {{name: own_{name}}}\n")
    assert {name for name, path in known(folder).items() if path.is_relative_to("presets")} == {"small", "large"}
    assert composed(["first", "large"], folder).model.name == "own_large"


@pytest.mark.parametrize("name", experiments(PRESETS))
def test_every_shipped_experiment_names_itself_fits_its_tasks_and_is_planned(name: str) -> None:
    params = composed([name], PRESETS)
    assert params.experiment.name == name
    assert parse(yaml.safe_load(preset_text([name], PRESETS))) == params
    assert whole_params(configuration_of(params), params.runtime) == params, "what a stage is given of it"
    require_fitting_tasks(params)
    jobs = Counter(job.stage for job in planned_jobs(params, name))
    assert (jobs["train"], jobs["report"]) == (len(params.experiment.seeds), 1)


def test_every_part_is_used_by_an_experiment_or_fits_a_model_and_a_task() -> None:
    for name, path in known(PRESETS).items():
        if path.parent.name in {"algorithms", "hardware"}:
            assert composed(["qwen2_5_0_5b", "gsm8k", name], PRESETS).model.name == "qwen2_5_0_5b_instruct"


def test_a_later_preset_wins_and_parts_without_an_experiment_give_it_their_names_without_the_hardware(
    folder: Path,
) -> None:
    assert composed(["small", "sums", "box"], folder).experiment.name == "small-sums"
    params = composed(["first"], folder)
    assert (params.sft.steps, params.training.steps, params.model.name) == (3, 7, "small")
    both = composed(["first", "small"], folder)
    assert (both.sft.steps, both.experiment.name) == (0, "first-small")


def test_a_file_of_ones_own_is_a_preset_and_may_name_files_beside_it(folder: Path) -> None:
    own = folder / "mine.yaml"
    own.write_text("use: [first]\ndata: {mirror: ./rows, pass_rates: results/rates.parquet}\n")
    params = composed([str(own)], folder)
    assert (params.training.steps, params.data.pass_rates) == (7, "results/rates.parquet")
    assert params.data.mirror == str(folder / "rows")


def test_presets_that_use_each_other_are_refused(folder: Path) -> None:
    (folder / "tasks/sums.yaml").write_text("use: [first]\n")
    with pytest.raises(UserError, match="first -> sums -> first use each other"):
        composed(["first"], folder)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["qwen2_5_0_5"], r"there is no preset `qwen2_5_0_5` in .*: the nearest one is `qwen2_5_0_5b`"),
        (["gpqa"], r"there is no preset `gpqa` in .*: it is a task; name it in experiment\.tasks"),
        (["qwen2_5_0_5b", "gsm8k", "dapo_math", "h100"], "the presets gsm8k and dapo_math both name the task, and"),
        (["qwen2_5_0_5b", "gsm8k", "qwen3_4b"], "the presets qwen2_5_0_5b and qwen3_4b both name the model, and"),
        (["qwen3_4b", "gsm8k", "dapo", "opd"], "the presets dapo and opd both set algorithm.loss, and .* leave out"),
        (["qwen3_4b", "h100", "gsm8k", "h200_x2"], "the presets h100 and h200_x2 both describe the hardware, and"),
    ],
)
def test_an_unknown_preset_and_one_that_another_would_undo_are_refused(names: list[str], fault: str) -> None:
    with pytest.raises(UserError, match=f"^{fault}"):
        composed(names, PRESETS)


def test_algorithms_that_set_different_parameters_are_laid_over_each_other() -> None:
    params = composed(["qwen3_4b", "gsm8k", "gspo", "lora"], PRESETS)
    assert (params.algorithm.loss.name, params.training.lora.rank) == ("gspo", 16)


@pytest.mark.parametrize(
    ("names", "is_missing"),
    [(["grpo", "qwen2_5_0_5b"], True), (["qwen2_5_0_5b", "gsm8k"], False), (["arithmetic_tiny", "lora"], False)],
)
def test_presets_without_a_task_are_known(names: list[str], is_missing: bool) -> None:
    assert name_no_task(names, PRESETS) == is_missing
