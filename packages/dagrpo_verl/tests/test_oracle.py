"""verl's own code composes, validates and grades what training.backend verl writes, and the stand-in has its keys.

DAGRPO_OBJECTIVES_PYTHON names the Python of an environment with verl, as `make oracle` does.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from docs.site.pages import trains_with
from packages.dagrpo_verl.tests import lora_checkpoint, scripted_attempts, several_turns, with_pictures
from safetensors.torch import load_file
from tests.trainer import foreign_runs, picture_runs, runs

from dagrpo.checkpoints.source import open_as
from dagrpo.config.overlay import merged
from dagrpo.config.places import ROOT
from dagrpo.config.presets import composed
from dagrpo.config.scripts import presets
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.config.lora import Lora
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import write_parquet
from dagrpo_foreign.files import write_inputs
from dagrpo_verl import composition, running
from dagrpo_verl.mapping import configuration, planned

pytestmark = pytest.mark.nightly
STAND_IN = Path(__file__).with_name("stand_in") / "verl/trainer/config/ppo_trainer.yaml"
DRAWING = str(Path(__file__).with_name("verl_draws.py"))
SHOWING = str(Path(__file__).with_name("verl_pictures.py"))
FILTERING = str(Path(__file__).with_name("verl_filter.py"))
ALGORITHMS: list[dict[str, Any]] = [
    {},
    {"loss": {"name": "gspo"}, "correction": {"name": "sequence_masked"}, "kl": {"coefficient": 0.001}},
    {
        "loss": {"name": "cispo"},
        "advantage": {"name": "rloo"},
        "aggregation": "constant",
        "correction": {"name": "none"},
    },
    {"loss": {"name": "clip_cov"}, "correction": {"name": "token_masked"}, "terms": {"entropy": {"coefficient": 0.01}}},
    {"loss": {"name": "dro"}, "advantage": {"name": "opo"}, "kl": {"coefficient": 0.1, "place": "reward"}},
]


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment with verl."""
    path = os.environ.get("DAGRPO_OBJECTIVES_PYTHON", "")
    if not Path(path).is_file():
        pytest.skip("DAGRPO_OBJECTIVES_PYTHON names no Python of an environment with verl: `make oracle` makes one")
    return path


def check(python: str, folder: Path, changes: dict[str, Any], settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Have verl check a run of ten problems in steps of four prompts, and return what it finds."""
    backend = {"training": {"backend": {"name": "verl"}}, "runtime": {"backend": {"python": python}}}
    run = foreign_runs.run_in(folder, merged(backend, changes))
    files = running.files_of(run, write_inputs(run, folder), folder)
    running.check(run, configuration(run, settings or {}, run.seed, files), folder)
    found: dict[str, Any] = read_json(folder / "check.reply.json")
    return found


def printed(*command: str) -> str:
    """Return the last line that a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_verl_accepts_the_configuration_and_grades_by_our_process(
    algorithm: dict[str, Any], python: str, tmp_path: Path
) -> None:
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.6}
    found = check(python, tmp_path, {"algorithm": algorithm, "training": {"mini_batches": 2}}, settings)
    assert found["rows"] == 10
    assert hashlib.sha256((tmp_path / running.PLANNED).read_bytes()).hexdigest() == found["draws"]
    assert found["graded"] == {"reward": 0.0, "acc": 0.0, "accuracy": 0.0}


@pytest.mark.parametrize(("workers", "resumed_after"), [(8, 3), (0, 2)])
def test_verls_trainer_draws_the_prompts_of_the_plan_through_a_stop(
    workers: int, resumed_after: int, python: str, tmp_path: Path
) -> None:
    """Ten rows in steps of four: epochs end after two steps, with two rows left."""
    check(python, tmp_path, {"training": {"steps": 9}}, {"data.dataloader_num_workers": workers})
    planned = [json.loads(line) for line in (tmp_path / running.PLANNED).read_text().splitlines()]
    configured = tmp_path / f"{running.CONFIGURATION}.yaml"
    assert json.loads(printed(python, DRAWING, str(configured), str(len(planned)), str(resumed_after))) == planned
    assert len(planned) == 9


@pytest.mark.parametrize(("spread_of", "expected"), [("reward", [0, 1]), ("accuracy", [0, 3])])
def test_dynamic_sampling_trains_on_the_groups_that_verls_own_buffer_finds_to_differ(
    spread_of: str, expected: list[int], python: str, tmp_path: Path
) -> None:
    sampling = {"max_rounds": 1000, "spread_of": spread_of}
    changes = {"training": {"prompts_per_step": 2, "samples_per_prompt": 2, "dynamic_sampling": sampling}}
    assert check(python, tmp_path, changes)["draws"] is None  # they depend on rewards
    assert json.loads(printed(python, FILTERING, str(tmp_path / f"{running.CONFIGURATION}.yaml"))) == expected


COMPOSING = """
import json, runpy, sys
check = runpy.run_path(sys.argv[1])
for name, overrides in json.load(open(sys.argv[2])).items():
    try:
        config = check["composed"](overrides)
        check["require_valid"](config)
    except check["Refused"] as refused:
        print("refused:", name, refused)
print("presets composed")
"""


def test_verl_accepts_every_script_that_the_page_says_it_trains(python: str, tmp_path: Path) -> None:
    folder = ROOT / "presets"
    names = [name for name in presets(folder) if "verl" in trains_with(name, folder)]
    params: dict[str, Any] = {name: composed([name, "verl"], folder) for name in names}
    found = {name: planned(each, {}) for name, each in params.items()}
    overrides = {name: [running.override(*each) for each in keys.items()] for name, keys in found.items()}
    (tmp_path / "presets.json").write_text(json.dumps(overrides))
    command = [python, "-c", COMPOSING, composition.__file__, str(tmp_path / "presets.json")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in lines if line.startswith("refused")] == []
    assert lines[-1] == "presets composed"
    assert len(names) > 60


def test_verl_gets_the_tokens_masks_and_rewards_of_our_own_loop(python: str, tmp_path: Path) -> None:
    run = several_turns.run_in(tmp_path)
    path = os.environ.get("VERL_PYTHONPATH", "")
    several_turns.require_ours(
        scripted_attempts.attempts(python, run, tmp_path / "state", several_turns.SCRIPTS, path), run
    )


@pytest.fixture(scope="module")
def shows_pictures(python: str) -> str:
    """The Python, if verl's processors of pictures can be loaded there: they need torchvision and qwen-vl-utils."""
    code = "import torchvision, qwen_vl_utils, transformers; transformers.Qwen2VLImageProcessor"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"verl reads no pictures there: {done.stderr.splitlines()[-1]}")
    return python


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_verls_own_data_set_and_agent_loop_make_the_tokens_of_our_prompts_with_pictures(
    family: str, shows_pictures: str, tmp_path: Path
) -> None:
    run, folder = with_pictures.run_in(tmp_path, family, shows_pictures), tmp_path / "state"
    inputs = write_inputs(run, folder)
    running.check(run, configuration(run, {}, run.seed, running.files_of(run, inputs, folder)), folder)
    write_parquet(tmp_path / "shown.parquet", with_pictures.rows_of_verl(inputs.rows))
    configured = folder / f"{running.CONFIGURATION}.yaml"
    command = [shows_pictures, SHOWING, composition.__file__, str(configured), str(tmp_path / "shown.parquet")]
    theirs = {each["index"]: each for each in json.loads(printed(*command))}
    assert sorted(theirs) == [0, 1, 2, 3]
    for prompt in inputs.prompts[:4]:
        assert theirs[prompt.index]["prompt"] == list(prompt.token_ids)
        assert theirs[prompt.index]["sizes"] == with_pictures.sizes(prompt.row.images)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_verls_loop_gets_the_pictures_of_our_own(family: str, shows_pictures: str, tmp_path: Path) -> None:
    run, path = with_pictures.run_in(tmp_path, family), os.environ.get("PYTHONPATH", "")
    found = scripted_attempts.attempts(shows_pictures, run, tmp_path / "state", with_pictures.SCRIPTS, path)
    with_pictures.require_ours(found, run)


@pytest.mark.parametrize("family", ["text", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_what_verl_saves_is_read_and_an_adapter_added_as_peft_adds_it(
    kind: str, family: str, python: str, tmp_path: Path
) -> None:
    if family == "text":
        make_fresh(tmp_path / "model", runs.SHAPE, torch.float32)
    else:
        picture_runs.make_inputs(tmp_path, family)
    command = [python, "-P", lora_checkpoint.__file__, str(tmp_path / "model"), str(tmp_path / "saved"), kind]
    subprocess.run(command, check=True, timeout=600)
    adapter = Lora(rank=2, alpha=6) if kind == "lora" else Lora()
    weights = running.trained_weights(tmp_path / "saved/actor/huggingface", adapter, tmp_path / "model")
    theirs = load_file(tmp_path / "saved/merged.safetensors")
    expected = {short(name): value for name, value in theirs.items()}
    assert {short(name) for name in weights.specs} == expected.keys()
    assert weights.specs.keys() == open_as("huggingface", tmp_path / "model").specs.keys()
    for name in weights.specs:
        torch.testing.assert_close(weights.read(name), expected[short(name)], rtol=1e-5, atol=1e-5)


def short(name: str) -> str:
    """Return a name without what transformers' and some checkpoints' have more."""
    return name.replace("language_model.", "").replace("model.visual.", "visual.")


def test_the_stand_in_has_the_keys_of_verl(python: str) -> None:
    folder = Path(printed(python, "-c", "import verl, pathlib; print(pathlib.Path(verl.__file__).parent)"))
    theirs = yaml.safe_load((folder / "trainer/config/_generated_ppo_trainer.yaml").read_text())
    assert json.dumps(yaml.safe_load(STAND_IN.read_text())) == json.dumps(theirs)
