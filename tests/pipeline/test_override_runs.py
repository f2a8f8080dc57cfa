"""An override run has values that params.yaml lacks; values that change no result make none."""

import pytest

from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.override_runs import override_run


def test_the_experiment_of_the_file_overrides_nothing() -> None:
    run = override_run(Params(), Params())
    assert (run.folder, dict(run.overrides)) == ("arithmetic_tiny", {})


def test_runtime_overrides_nothing() -> None:
    faster = parse({"runtime": {"training": {"processes": 4, "micro_batch_size": 2}}})
    assert not override_run(faster, Params()).overrides


def test_an_override_run_has_a_folder_of_its_own_and_lists_its_values() -> None:
    run = override_run(parse({"training": {"steps": 3}}), Params())
    assert run.overrides == {"training.steps": 3}
    name, _, digest = run.folder.partition("~")
    assert (name, len(digest)) == ("arithmetic_tiny", 8)


def test_the_same_values_give_the_same_folder_and_others_another() -> None:
    one, same, other = (override_run(parse({"training": {"steps": steps}}), Params()).folder for steps in (3, 3, 4))
    assert one == same != other
    edited = parse({"training": {"steps": 3}, "sft": {"steps": 1}})
    assert override_run(edited, parse({"sft": {"steps": 1}})).folder != one, "the file's values count, too"


def test_another_loss_is_listed_with_its_parameters_and_those_that_went() -> None:
    gspo = parse({"algorithm": {"loss": {"name": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}}})
    overrides = override_run(gspo, Params()).overrides
    assert overrides["algorithm.loss.name"] == "gspo"
    assert {key for key, value in overrides.items() if value is None} <= {"algorithm.loss.dual_clip"}


def test_an_override_run_may_have_a_name_of_its_own_which_params_yaml_may_not() -> None:
    named = parse({"experiment": {"name": "arithmetic_tiny~short"}, "training": {"steps": 3}})
    run = override_run(named, Params())
    assert run.folder == "arithmetic_tiny~short"
    assert run.overrides == {"experiment.name": "arithmetic_tiny~short", "training.steps": 3}
    with pytest.raises(UserError, match="stands in names of override runs alone"):
        override_run(named, named)
