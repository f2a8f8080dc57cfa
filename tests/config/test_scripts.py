"""Scripts of verl and Megatron-LM as presets, from one table."""

from pathlib import Path

import pytest
from docs.site.pages import scripts_page

from dagrpo.config.presets import composed
from dagrpo.config.scripts import TABLE, presets
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.validation import require_fitting_tasks
from dagrpo_plan.machine import machine_for
from dagrpo_plan.models import Models
from dagrpo_plan.remedy import refusal

ROOT = Path(__file__).parents[2]
PRESETS = ROOT / "presets"
SCRIPTS = presets(PRESETS)
HEADER, LINE = (PRESETS / TABLE).read_text().splitlines()[:2]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if place % 20 == 0 else pytest.mark.nightly) for place, name in enumerate(SCRIPTS)],
)
def test_a_script_is_parsed_planned_and_fits_the_hardware_that_it_names(name: str) -> None:
    params = composed([name], PRESETS)
    assert params.experiment.name == name.replace("/", "_")
    require_fitting_tasks(params)
    assert {"train", "report"} <= {job.stage for job in planned_jobs(params, params.experiment.name)}
    card = SCRIPTS[name].use.split()[-1].partition("_x")[0].upper()
    assert refusal(params, Models.of(params), machine_for(card, None)) is None


def test_a_script_has_its_figures() -> None:
    params = composed(["verl/qwen2_5_3b_gsm8k_multiturn_4xgpu"], PRESETS)
    training, rollout, algorithm = params.training, params.rollout, params.algorithm
    assert (training.prompts_per_step, training.mini_batches, training.samples_per_prompt) == (256, 1, 16)
    assert (training.steps, training.learning_rate, training.learning_rate_warmup_steps) == (435, 1e-6, 0)
    assert (training.weight_decay, training.max_prompt_tokens, rollout.max_new_tokens) == (0.01, 1024, 1024)
    assert rollout.agent.model_dump()["max_turns"] == 2
    assert rollout.agent.model_dump()["max_tokens"] == 2048
    assert (algorithm.kl.coefficient, algorithm.aggregation) == (0.001, "token-mean")
    assert (params.model.name, params.experiment.train) == ("qwen2_5_3b_instruct", "gsm8k_tool")
    assert (params.runtime.training.processes, params.runtime.engine.model_dump()["tensor_parallel"]) == (4, 2)


def test_settings_beside_the_columns_become_parameters() -> None:
    params = composed(["verl/qwen3_4b_dapo_multiturn"], PRESETS)
    assert params.algorithm.loss.model_dump() == {
        "name": "ppo_clip",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 10.0,
    }
    assert params.rollout.agent.model_dump()["max_turns"] == 16
    assert (params.evaluation.sampling.samples, params.evaluation.sampling.top_p) == (30, 0.6)
    assert params.reward.components["accuracy"].model_dump()["wrong"] == -1.0
    assert set(params.reward.components) == {"accuracy", "tool_effort"}


@pytest.mark.parametrize(
    ("column", "text", "fault"),
    [
        ("batch", "256", r"line 2 \(verl/.*\): `batch` is '256': write prompts per step"),
        ("special", "tool geo3", r"line 2 \(verl/.*\): `special` is 'tool geo3': `tool geo3` is unknown"),
        ("lr", "fast", r"line 2 \(verl/.*\): `lr` is 'fast': write a rate"),
    ],
)
def test_a_mistake_in_the_table_is_refused_with_its_line(column: str, text: str, fault: str, tmp_path: Path) -> None:
    cells = LINE.split("\t")
    cells[HEADER.split("\t").index(column)] = text
    for kind in ("models", "tasks", "hardware"):
        (tmp_path / kind).symlink_to(PRESETS / kind)
    (tmp_path / TABLE).write_text("\n".join([HEADER, "\t".join(cells)]))
    with pytest.raises(UserError, match=fault):
        composed([cells[0]], tmp_path)


@pytest.mark.nightly
def test_the_page_is_the_one_that_the_table_gives() -> None:
    assert (ROOT / "docs/scripts.md").read_text() == scripts_page(PRESETS), "run `dagrpo generate`"
