"""A try is what params.yaml does not hold; what changes no result makes none."""

from dagrpo.config.schema import Params, parse
from dagrpo.pipeline.trial_runs import try_of


def test_the_experiment_of_the_file_is_no_try() -> None:
    found = try_of(Params(), Params())
    assert (found.is_one, found.folder, dict(found.overrides)) == (False, "arithmetic_tiny", {})


def test_runtime_makes_no_try() -> None:
    faster = parse({"runtime": {"training": {"processes": 4, "micro_batch_size": 2}}})
    assert not try_of(faster, Params()).is_one


def test_a_try_has_a_folder_of_its_own_and_says_what_it_changes() -> None:
    found = try_of(parse({"training": {"steps": 3}}), Params())
    assert found.is_one
    assert found.overrides == {"training.steps": 3}
    name, _, digest = found.folder.partition("~")
    assert (name, len(digest)) == ("arithmetic_tiny", 8)


def test_the_same_try_has_the_same_folder_and_another_one_another() -> None:
    one, same, other = (try_of(parse({"training": {"steps": steps}}), Params()).folder for steps in (3, 3, 4))
    assert one == same != other
    edited = parse({"training": {"steps": 3}, "sft": {"steps": 1}})
    assert try_of(edited, parse({"sft": {"steps": 1}})).folder != one, "the file it is laid over counts, too"


def test_another_loss_is_told_with_its_parameters_and_those_that_went() -> None:
    gspo = parse({"algorithm": {"loss": {"name": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}}})
    overrides = try_of(gspo, Params()).overrides
    assert overrides["algorithm.loss.name"] == "gspo"
    assert {key for key, value in overrides.items() if value is None} <= {f"algorithm.loss.{k}" for k in ("dual_clip",)}
