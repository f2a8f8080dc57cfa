"""A faulty declaration is one message that names the stage and the field."""

from typing import Any

import pytest

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import Stage
from dagrpo.pipeline.job_files import own_params

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
