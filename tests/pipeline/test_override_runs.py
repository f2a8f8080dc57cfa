"""An override run has values that params.yaml lacks; values that change no result make none."""

from collections.abc import Mapping

import pytest

from dagrpo.config.schema import Params, parse
from dagrpo.config.sweeps import Sweep
from dagrpo.core.errors import UserError
from dagrpo.pipeline.override_runs import cell_runs, override_run


def test_the_same_values_give_the_same_folder_and_others_another() -> None:
    run = override_run(parse({"training": {"steps": 3}}), Params())
    name, _, digest = run.folder.partition("~")
    assert (name, len(digest), run.overrides) == ("arithmetic_tiny", 8, {"training.steps": 3})
    faster = parse({"runtime": {"training": {"processes": 4, "micro_batch_size": 2}}})
    for nothing in (Params(), faster):
        run = override_run(nothing, Params())
        assert (run.folder, dict(run.overrides)) == ("arithmetic_tiny", {})
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


def folders(sweep: Mapping[str, object], file: Params) -> list[str]:
    return [cell.run.folder for cell in cell_runs(Sweep.model_validate(sweep), file)]


def test_a_cell_is_an_override_run_named_by_its_values_alone() -> None:
    grid: dict[str, object] = {"grid": {"training.steps": [3, 4]}}
    three, four = folders(grid, Params())
    assert three.startswith("arithmetic_tiny~")
    assert three != four
    assert folders(grid | {"seeds": [5, 6]}, Params()) == [three, four], "another seed extends the cell"
    assert folders(grid, parse({"sft": {"steps": 1}})) == [three, four], "so do other parameters of the file"
    assert folders({"cells": [{"training.steps": 4}]}, Params()) == [four]


def test_a_cell_with_the_values_of_the_file_is_the_experiment_itself() -> None:
    steps = Params().training.steps
    assert folders({"grid": {"training.steps": [steps]}}, Params()) == ["arithmetic_tiny"]
    (other,) = folders({"seeds": [7], "grid": {"training.steps": [steps]}}, Params())
    assert other.startswith("arithmetic_tiny~")


def test_equal_values_in_another_notation_are_one_cell() -> None:
    rates = {"grid": {"training.learning_rate": [0.0003, "3e-4"]}}
    assert len(folders(rates, Params())) == 1


def test_a_cell_whose_parameters_do_not_fit_is_named() -> None:
    with pytest.raises(UserError, match=r"the cell training\.stps: 3: unknown key `training\.stps`"):
        folders({"cells": [{"training.stps": 3}]}, Params())
