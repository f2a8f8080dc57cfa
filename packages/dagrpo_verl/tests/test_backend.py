"""verl as a plug-in: found by its entry point, part of a stage's code, and asked for by name where it is missing."""

from pathlib import Path

import pytest

from dagrpo.config.schema import parse
from dagrpo.core import plugins
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.code import code_of_stage
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.backends import BACKENDS

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
