"""A faulty declaration is one message that names the stage and the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import Needs, Stage
from dagrpo.pipeline.job_files import memory_mb, minutes, own_params
from dagrpo.utils.manifest import MANIFEST

OUTPUTS = {
    "lengths": "results/{experiment}/x/{task}.json",
    "provenance": "results/{experiment}/x/{task}.provenance.json",
}


def _stage(**fields: Any) -> Stage:
    given: dict[str, Any] = {"name": "x", "work": lambda job: None, "reads": (), "outputs": OUTPUTS} | fields
    return Stage(**given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outputs": {"lengths": "results/{experiment}/x.json"}}, "the stage x has no output provenance: add one"),
        (
            {"outputs": OUTPUTS | {"more": "results/{experiment}/{tsk}"}},
            "the outputs of the stage x name {tsk}: the nearest one is `task`",
        ),
        (
            {"inputs": {"a": "data/{experiment}/{trian}"}},
            "the inputs of the stage x name {trian}: the nearest one is `train`",
        ),
        ({"label": "{seed}"}, "the label of the stage x name {seed}: the nearest one is"),
    ],
)
def test_a_declaration_that_cannot_work_names_stage_and_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        _stage(**fields)
    assert message in str(caught.value)


def test_a_parameter_that_no_section_has_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"the stage x reads training\.stepz, .* the nearest one is `training\.steps`"):
        own_params(Params(), _stage(reads=("training.stepz",)))


def test_time_and_memory_of_a_job_grow_with_its_checkpoint_and_memory_with_each_attempt(tmp_path: Path) -> None:
    needs = Needs(memory_mb=1000, memory_per_byte=2.0, minutes=60, minutes_per_gb=30)
    assert (memory_mb(needs, []), memory_mb(needs, [], 2), memory_mb(needs, [], 3)) == (1000, 1500, 2000)
    assert minutes(needs, []) == 60
    manifest = tmp_path / MANIFEST
    entry = {"bytes": 4_000_000_000, "sha256": "0" * 64}
    manifest.write_text(json.dumps({"files": {"model.safetensors": entry}}))
    assert memory_mb(needs, [str(manifest)]) == 9000
    assert minutes(needs, [str(manifest)]) == 180
