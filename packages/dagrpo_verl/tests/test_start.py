"""Command and environment that start verl, and the checkpoints that it finds."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dagrpo_verl.running import command, environment, override, remove_others

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
