"""A project that one may not write to is refused in a sentence, before any work."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.override_runs import PARAMS
from dagrpo.pipeline.snakemake.checks import (
    Refusal,
    checked,
    require_hub,
    require_mirror,
    require_possible_weights_folder,
    require_single_values,
    require_unedited,
    require_writable,
)
from dagrpo.utils.yaml_text import read_yaml

NOBODY = 65534
NOWHERE = "http://127.0.0.1:9"
GSM8K = {"train": "gsm8k", "evaluate": ["gsm8k"], "tasks": ["gsm8k"]}


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    for path in (folder, folder / "results"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _sentence(act: Callable[[], None]) -> str:
    """What somebody is told who is not root and owns no file here; empty where nothing is said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
        except UserError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        return told.read()


@pytest.mark.parametrize("name", [".", "results"])
def test_a_folder_that_one_may_not_write_to_is_named_with_its_owner(project: Path, name: str) -> None:
    project.chmod(0o777)
    (project / name).chmod(0o555)
    told = _sentence(lambda: require_writable(project))
    assert told.startswith(f"{project / name} cannot be written to by you (")
    assert f"it belongs to {(project / name).owner()}: work in a copy of your own" in told
    for path in (project, project / "results"):
        path.chmod(0o777)
    assert _sentence(lambda: require_writable(project)) == ""


def test_a_mirror_that_is_missing_or_lacks_files_is_refused_with_all_of_them_until_the_data_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def prepare(task: str) -> None:
        Path(f"data/e/{task}").mkdir(parents=True)
        Path(f"data/e/{task}/provenance.json").touch()

    missing = parse({"data": {"mirror": "/nowhere"}})
    with pytest.raises(UserError, match="is /nowhere, which is not a folder on this machine"):
        require_mirror(missing, "e")
    require_mirror(parse({"data": {"mirror": str(tmp_path)}}), "e")
    prepare("arithmetic")
    require_mirror(missing, "e")
    tasks = ["arithmetic", "gsm8k", "mbpp", "mbpp_one_test", "aime_2024"]
    params = parse({"data": {"mirror": str(tmp_path)}, "experiment": {"evaluate": tasks[1:], "tasks": tasks}})
    for name in ("gsm8k/test.jsonl", "mbpp/train.parquet"):
        Path(name).parent.mkdir()
        Path(name).touch()
    lacking = ["gsm8k/train.jsonl", "mbpp/test.jsonl", "aime/aime_2024.jsonl"]
    for expected in (lacking, lacking[:2]):
        with pytest.raises(UserError) as caught:
            require_mirror(params, "e")
        assert re.findall(r"[a-z0-9_]+/[a-z0-9_]+\.jsonl", str(caught.value)) == expected
        if expected == lacking:
            prepare("aime_2024")


def test_a_folder_for_weights_that_cannot_be_made_is_refused(project: Path) -> None:
    inner = project / "results/some/where"
    params = parse({"runtime": {"engine": {"weights_folder": str(inner)}}})
    told = _sentence(lambda: require_possible_weights_folder(params))
    assert told.startswith(
        f"runtime.engine.weights_folder is {inner}, which cannot be made or written to, as {project}/results"
    )
    (project / "results").chmod(0o777)
    assert _sentence(lambda: require_possible_weights_folder(params)) == ""
    assert not inner.exists()
    (project / "results/some").touch()
    assert f"as {project}/results/some is no folder" in _sentence(lambda: require_possible_weights_folder(params))


def test_a_params_yaml_that_was_edited_while_dvc_ran_a_stage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "prepare@tiny-arithmetic")
    PARAMS.write_text(params_yaml(Params()))
    require_unedited(Params())
    require_unedited(parse({"runtime": {"training": {"micro_batch_size": 1}}}))
    PARAMS.write_text(params_yaml(parse({"training": {"steps": 7}})))
    with pytest.raises(UserError, match=r"params.yaml was edited while this stage ran: what it made is not recorded"):
        require_unedited(Params())
    monkeypatch.delenv("DVC_STAGE")
    require_unedited(Params())


def test_a_section_after_config_is_refused_with_the_form_that_works() -> None:
    entry = "training={steps: 3, lora: {rank: 4}}"
    with pytest.raises(UserError, match=re.escape("write --config training__steps=3 training__lora__rank=4.")):
        require_single_values(["training__learning_rate=0.5", "experiment__seeds=[1, 2]", entry])


@pytest.mark.parametrize(
    ("params", "remedy", "made"),
    [
        ({"experiment": GSM8K}, "set data.mirror to", "data/other/gsm8k"),
        (
            {"model": {"source": "hub", "repository": "a/b", "revision": "1" * 40}},
            "set model.source",
            "models/other/{model}",
        ),
        (
            {
                "algorithm": {
                    "loss": {"name": "on_policy_distillation"},
                    "teacher": {"source": "hub", "repository": "a/b", "revision": "1" * 40},
                }
            },
            "set algorithm.teacher.source",
            "models/other/teacher",
        ),
    ],
)
def test_a_hub_that_does_not_answer_is_refused_until_what_it_has_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], remedy: str, made: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    wanted = parse(params)
    with pytest.raises(UserError, match=f"is to come from the hub, and {NOWHERE} cannot be reached .*{remedy}"):
        require_hub(wanted)
    folder = Path(made.format(model=wanted.model.name))
    folder.mkdir(parents=True)
    (folder / "provenance.json").touch()
    require_hub(wanted)


def test_another_file_takes_the_place_of_params_yaml_under_a_name_of_an_override_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PARAMS.write_text(params_yaml(parse({"reward": {"components": {"accuracy": {}, "format": {"weight": 0.5}}}})))
    other = Path("other.yaml")
    config = read_yaml(PARAMS) | {"params": str(other)}
    other.write_text(params_yaml(parse({"experiment": {"name": "mine~other"}, "training": {"steps": 7}})))
    params = checked(config | {"training__learning_rate": 0.5})
    assert (params.experiment.name, params.training.steps, params.training.learning_rate) == ("mine~other", 7, 0.5)
    assert "format" not in params.reward.components  # of params.yaml nothing is left
    other.write_text(params_yaml(parse({"experiment": {"name": "mine"}})))
    with pytest.raises(Refusal, match=r"other.yaml: experiment.name is mine: .* such as mine~other"):
        checked(config)
