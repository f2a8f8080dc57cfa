"""verl as a plug-in: found by its entry point, started by its command, its checkpoints found, its adapter added to weights."""

from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.config.schema import parse
from dagrpo.core import plugins
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.code import code_of_stage
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.backends import BACKENDS
from dagrpo_verl.running import MergedAdapter, command, environment, override, remove_others

PARAMS = {
    "rollout": {"deterministic": False, "dtype": "bfloat16"},
    "training": {"dtype": "bfloat16", "backend": {"name": "verl"}},
}
SOURCE = "packages/dagrpo_verl/src/dagrpo_verl"


def test_an_edit_of_any_module_runs_the_training_again_and_no_other_stage() -> None:
    params, stages = parse(PARAMS), all_stages()
    own = {f"{SOURCE}/{path.name}" for path in Path(SOURCE).glob("*.py")}
    assert own <= {*code_files(params, stages["train"])}
    assert SOURCE in code_of_stage(params, stages["train"])
    assert not any(own & {*code_files(params, stage)} for name, stage in stages.items() if name != "train")
    assert not own & {*code_files(parse({}), stages["train"])}


def test_without_the_package_the_backend_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_entry_points", lambda: ())
    assert BACKENDS.names() == ["fsdp"]
    with pytest.raises(UserError, match=r"training\.backend\.name is verl, .* `pip install 'dagrpo\[verl\]'`"):
        parse(PARAMS)


FOLDER = Path("/state/tiny~a=1(2),'3'#[\u00fc]")  # that of an override run or a sweep's cell has such a name


def test_hydra_reads_a_folder_of_any_name() -> None:
    words = [word for word in command("python", FOLDER)[3:] if not word.startswith("--")]
    found = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(words)}
    assert found == {"hydra.run.dir": str(FOLDER), "hydra.output_subdir": None}


@pytest.mark.parametrize("value", ["\\d", "a\\", 'a "b"', '\\"', "C:\\d\\\\", "~", "", [1, "b", None, True]])
def test_hydra_reads_a_value_as_it_is(value: object) -> None:
    [found] = OverridesParser.create().parse_overrides([override("a", value)])
    assert found.value() == value
    assert override("actor_rollout_ref.rollout.custom.c", value).startswith("++")  # which verl's schema leaves open


def test_verl_starts_its_own_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    found = environment(Path("/state/attempt_001.jsonl"))
    assert "RAY_ADDRESS" not in found
    assert found["SGLANG_VLM_CACHE_SIZE_MB"] == "0"  # it would keep what former weights made of a picture
    assert found["VERL_FILE_LOGGER_PATH"] == "/state/attempt_001.jsonl"


def test_checkpoints_of_other_steps_are_removed_before_a_start(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    remove_others(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_4"]


def test_each_weight_gets_its_update_and_the_name_of_the_model_without_an_adapter() -> None:
    layer = "base_model.model.model.layers.0.q_proj"
    saved = {
        "base_model.model.model.norm.weight": torch.tensor([5.0]),
        f"{layer}.base_layer.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        f"{layer}.base_layer.bias": torch.tensor([6.0, 7.0]),
        f"{layer}.lora_A.default.weight": torch.tensor([[1.0, 10.0]]),
        f"{layer}.lora_B.default.weight": torch.tensor([[1.0], [2.0]]),
    }
    names = ("model.norm.weight", "model.layers.0.q_proj.weight", "model.layers.0.q_proj.bias")
    merged = MergedAdapter(StateTensors(saved), scale=3.0, names=names)
    found = {name: merged.read(name).tolist() for name in merged.specs}
    assert found == {
        "model.norm.weight": [5.0],
        "model.layers.0.q_proj.weight": [[4.0, 32.0], [9.0, 64.0]],
        "model.layers.0.q_proj.bias": [6.0, 7.0],
    }


def test_both_parts_of_qwen2_5_vl_get_the_names_of_its_checkpoints() -> None:
    start = "base_model.model.model"
    saved = {f"{start}.language_model.norm.weight": torch.ones(1), f"{start}.visual.merger.weight": torch.ones(1)}
    names = ("model.norm.weight", "visual.merger.weight")
    assert tuple(MergedAdapter(StateTensors(saved), scale=1.0, names=names).specs) == names
    longer = ("model.language_model.norm.weight", "model.visual.merger.weight")  # Qwen3-VL's
    assert tuple(MergedAdapter(StateTensors(saved), scale=1.0, names=longer).specs) == longer
