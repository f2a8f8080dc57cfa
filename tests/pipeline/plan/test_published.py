"""Plans of published models on a machine that has nothing of them and asks nobody."""

from pathlib import Path

import pytest

from dagrpo.config.places import ROOT
from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.pipeline.plan.models import policy_shape
from dagrpo.utils.yaml_text import read_yaml

PRESETS = ROOT / "presets"
OF_HUB = {
    str(model["repository"]): path.stem
    for path in (PRESETS / "models").glob("*.yaml")
    if (model := read_yaml(path)["model"]).get("source") == "hub"
}
# Numbers of weights, tied ones once: the sums of the tensors' sizes in the published safetensors files.
WEIGHTS = {
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
    assert policy_shape(params, online=False).weights == WEIGHTS[repository]
