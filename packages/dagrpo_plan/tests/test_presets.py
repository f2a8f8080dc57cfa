"""Presets of hardware against the plan: what the documentation pairs fits, in 16 bits, with steps under an hour."""

from pathlib import Path

import pytest
from benchmarks.gpu.presets import (
    CARDS,
    FITTING,
    PRESETS,
    dapo_rows,
    large_rows,
    planned,
    published_rows,
    rows,
    shape_of,
    train_of,
)

from dagrpo.config.places import ROOT
from dagrpo.config.presets import composed, experiments, hardware_in
from dagrpo.config.schema import parse
from dagrpo.utils.yaml_text import read_yaml
from dagrpo_plan.machine import machine_for, speed_of
from dagrpo_plan.models import Models, policy_shape
from dagrpo_plan.outcome import APART, TOGETHER, ways_to_sample
from dagrpo_plan.remedy import fullest, refusal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


@pytest.mark.parametrize(("model", "hardware"), [(model, each) for model, fit in FITTING.items() for each in fit])
def test_a_model_fits_the_hardware_named_for_it_with_steps_under_an_hour(
    model: str, hardware: str, folder: Path
) -> None:
    params, shapes, machine = planned([model, "gsm8k", "grpo", hardware], folder)
    assert refusal(params, shapes, machine) is None
    assert fullest(params, shapes, machine).total <= 0.92 * machine.memory
    assert sum(train_of(params, shapes, machine).of_a_step.values()) < 3600


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in experiments(PRESETS) if name.startswith("qwen")])
def test_an_experiment_with_a_published_model_fits_the_hardware_that_it_uses(name: str, folder: Path) -> None:
    assert hardware_in([name], PRESETS) == ["h200"]
    model = next(model for model in (*FITTING, "qwen2_5_vl_3b") if name.startswith(model))
    params = composed([name], PRESETS)
    shapes = Models(policy=shape_of(model, folder), pixels=params.model.max_pixels)
    assert refusal(params, shapes, machine_for("H200", None)) is None


@pytest.mark.parametrize("task", [("gsm8k", "grpo"), ("dapo_math", "dapo")])
@pytest.mark.parametrize(
    ("model", "hardware"), [("qwen2_5_7b", "h100_x8"), ("qwen3_8b", "a100_x4"), ("qwen3_4b", "l40s_x4")]
)
def test_four_gpus_and_more_ship_the_faster_placement(
    model: str, hardware: str, task: tuple[str, str], folder: Path
) -> None:
    params, shapes, machine = planned([model, *task, hardware], folder)
    seconds = ways_to_sample(params, shapes, machine, speed_of(machine, params))
    assert not params.runtime.engine.own_gpus
    assert seconds[TOGETHER] <= seconds.get(APART, seconds[TOGETHER])


@pytest.mark.parametrize("count", ["", "_x2", "_x4", "_x8"])
@pytest.mark.parametrize("card", CARDS)
def test_hardware_trains_and_samples_in_16_bits_with_a_process_for_each_gpu(card: str, count: str) -> None:
    params = composed(["qwen2_5_0_5b", "gsm8k", "grpo", card + count], PRESETS)
    assert {params.training.dtype, params.sft.dtype, params.rollout.dtype} == {"bfloat16"}
    gpus = int(count.removeprefix("_x") or 1)
    assert (params.runtime.training.processes, params.runtime.sft.processes) == (gpus, gpus)
    assert params.runtime.engine.replicas == gpus


@pytest.mark.nightly
def test_the_table_of_the_documentation_is_the_one_that_the_plan_prints(folder: Path) -> None:
    """`python -m benchmarks.gpu.presets` prints it."""
    shown = [line for page in ("gpu", "cluster") for line in (ROOT / f"docs/{page}.md").read_text().splitlines()]
    tables = (table(folder) for table in (rows, published_rows, dapo_rows, large_rows))
    assert [row for table in tables for row in table if row not in shown] == []


def test_weights_are_planned_in_buckets_where_each_gpu_of_a_server_has_a_process(folder: Path) -> None:
    params, shapes, machine = planned(["qwen2_5_7b", "gsm8k", "grpo", "h100_x4"], folder)
    size = 2 * 7_615_616_512
    of_more = params.runtime.engine.model_copy(update={"tensor_parallel": 2})
    runtime = params.runtime.model_copy(update={"engine": of_more})
    beside, more = (
        train_of(each, shapes, machine) for each in (params, params.model_copy(update={"runtime": runtime}))
    )
    assert beside.of_a_step["weight sync"] == pytest.approx(size / 5e9)
    assert more.of_a_step["weight sync"] > 2 * size / 1e9


OF_HUB = {
    str(model["repository"]): path.stem
    for path in (PRESETS / "models").glob("*.yaml")
    if (model := read_yaml(path)["model"]).get("source") == "hub"
}
# Numbers of weights, tied ones once: the sums of the tensors' sizes in the published safetensors files.
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen/Qwen2-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-Coder-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-30B-A3B-Base": 30_532_122_624,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 30_532_122_624,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
}


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without models, and a hub's cache that is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_model_without_a_preset_is_known_by_its_repository(nowhere: None) -> None:
    hub = {"source": "hub", "repository": "Qwen/Qwen3-235B-A22B", "revision": "0" * 40}
    assert policy_shape(parse({"model": hub}), online=False).weights == 235_093_634_560


@pytest.mark.parametrize("repository", OF_HUB)
def test_a_published_model_has_its_number_of_weights(repository: str, nowhere: None) -> None:
    params = composed([OF_HUB[repository], "arithmetic"], PRESETS)
    assert policy_shape(params, online=False).weights == PUBLISHED[repository]
