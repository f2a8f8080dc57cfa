"""What changes between two sets of parameters, each key with its section."""

from pathlib import Path

from dagrpo.config.overlay import Change, changes
from dagrpo.config.schema import Params, parse
from dagrpo.utils.yaml_text import read_yaml


def test_a_change_names_its_section() -> None:
    assert changes({}, parse({"training": {"steps": 3}})) == [Change("training.steps", "120", "3")]


def test_a_number_in_another_notation_and_a_default_that_is_left_out_are_no_change() -> None:
    assert changes({"training": {"learning_rate": "1e-4"}}, Params()) == []


def test_the_keys_of_another_loss_replace_those_of_the_one_before() -> None:
    shown = changes({"algorithm": {"loss": {"name": "ppo_clip"}}}, parse({"algorithm": {"loss": {"name": "gspo"}}}))
    assert Change("algorithm.loss.name", "ppo_clip", "gspo") in shown
    assert all(change.key.startswith("algorithm.loss.") for change in shown)


def test_mistakes_in_the_old_file_are_shown_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("training: {setps: 3, steps: many}\nreports: 2\n")
    assert changes(read_yaml(path), Params()) == [
        Change("training.steps", "many", "120"),
        Change("training.setps", "3", "(none)"),
        Change("reports", "2", "(none)"),
    ]
