"""A crate has every execution with its parameters and digests, and what cannot be believed makes none."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.changes.made_up import Project

from dagrpo.config.schema import read_params
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo_publish.crate.finished import Finished, read_finished
from dagrpo_publish.crate.writing import by_digest, metadata, write_crate


def _entities(crate: Path) -> dict[str, dict[str, Any]]:
    content = json.loads((crate / "ro-crate-metadata.json").read_text())
    return {each["@id"]: each for each in content["@graph"]}


def _names(value: Any) -> list[str]:
    return [each["@id"] for each in (value if isinstance(value, list) else [value])]


def test_each_execution_is_an_action_with_its_inputs_outputs_and_parameters(
    written: tuple[Project, Finished], crate: Path
) -> None:
    project, entities = written[0], _entities(crate)
    for provenance in project.provenances:
        record, action = read_json(project.root / provenance), entities[f"#action/{provenance}"]
        files = {entities[each].get("sha256") for each in _names(action["object"])}
        assert set(record["inputs"].values()) <= files
        assert {entities[each].get("sha256") for each in _names(action["result"])} >= set(record["outputs"].values())
        assert action["instrument"] == {"@id": f"#stage/{record['stage']}"}
    (train,) = (
        each
        for name, each in entities.items()
        if name.startswith("#action/") and name.endswith("seed_0/policy/provenance.json")
    )
    assert "#training.learning_rate" in _names(train["object"])
    assert entities["#training.learning_rate"]["value"] == str(project.params.training.learning_rate)
    assert "#environment/torch=2.13.0" in _names(train["environment"])


def test_libraries_are_software_with_a_version_and_files_are_source_code(crate: Path) -> None:
    kinds = {each["@id"]: each["@type"] for name, each in _entities(crate).items() if name.startswith("#code/")}
    assert {kind for name, kind in kinds.items() if "library%20" in name} == {"SoftwareApplication"}
    assert {kind for name, kind in kinds.items() if "library%20" not in name} == {"SoftwareSourceCode"}
    assert _entities(crate)["#code/library%20sympy"]["softwareVersion"] == version("sympy")


def test_all_that_is_named_is_there_and_every_file_is_a_part_of_the_whole(crate: Path) -> None:
    entities = _entities(crate)
    parts = _names(entities["./"]["hasPart"])
    for entity in entities.values():
        for value in entity.values():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and not each["@id"].startswith("http"):
                    assert each["@id"] in entities
        if "File" in entity["@type"]:
            assert entity["@id"] in parts
            assert entity["@id"].startswith("ni:") or (crate / entity["@id"]).is_file()
    # Texts of problems and weights stay where they are.
    assert {path.suffix for path in crate.rglob("*") if path.is_file()} <= {".json", ".yaml", ""}
    assert not list(crate.rglob("card.json"))


def test_parameters_are_those_of_the_records_whatever_params_yaml_has_become(made_up: Project) -> None:
    made_up.write_params(training={"steps": 7})
    finished = read_finished(made_up.name)
    assert finished.params.model_dump(exclude={"runtime"}) == made_up.params.model_dump(exclude={"runtime"})
    for name in ("a.crate", "b.crate"):  # the same bytes each time
        write_crate(finished, Path(name))
    first, second = (Path(name, "ro-crate-metadata.json").read_bytes() for name in ("a.crate", "b.crate"))
    assert first == second
    assert read_params(Path("a.crate/params.yaml")) == finished.params


def test_stages_of_different_parameters_or_inputs_make_no_crate(made_up: Project) -> None:
    path = made_up.provenance("train")
    before = record = read_json(path)
    write_json(path, record | {"inputs": dict.fromkeys(record["inputs"], "0" * 64)})
    with pytest.raises(UserError, match=r"was made again by .* after train, seed 0 had read it"):
        read_finished(made_up.name)
    write_json(path, before)
    path = made_up.provenance("score")
    record = read_json(path)
    record["params"]["reward"] = {"verify_seconds": 99.0}
    write_json(path, record)
    with pytest.raises(UserError, match=r"reward\.verify_seconds is .* since the stages ran with different ones"):
        read_finished(made_up.name)


def test_an_unfinished_experiment_makes_no_crate(made_up: Project) -> None:
    made_up.provenance("report").unlink()
    with pytest.raises(UserError, match=r"is not finished: .*report/provenance.json is missing"):
        read_finished(made_up.name)
    with pytest.raises(UserError, match="the nearest one is `arithmetic_tiny`"):
        read_finished("arithmetic_tinny")


def test_a_secret_and_a_changed_output_make_no_crate(made_up: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = read_finished(made_up.name)
    with monkeypatch.context() as patch:
        patch.setenv("MY_API_KEY", made_up.params.model.name)  # as if somebody had written it into params.yaml
        with pytest.raises(UserError, match="holds a password, a key or a token"):
            write_crate(finished, Path("a.crate"))
    scores = made_up.provenance("score").with_name("scores.json")
    scores.write_text(scores.read_text() + "\n")
    with pytest.raises(UserError, match=r"scores.json was changed after score"):
        write_crate(finished, Path("a.crate"))
    assert not Path("a.crate").exists()


def test_a_file_that_is_too_large_for_the_crate_must_be_unchanged_too(made_up: Project) -> None:
    scores = made_up.provenance("score").with_name("scores.json")
    scores.write_text(scores.read_text() + " " * (17 << 20))
    with pytest.raises(UserError, match=r"scores.json was changed after score"):
        write_crate(read_finished(made_up.name), Path("a.crate"))


def test_the_action_that_chose_a_policy_says_how(made_up: Project) -> None:
    finished = read_finished(made_up.name)
    file = "results/made_up/runs/seed_0/chosen/choice.json"
    estimate = {"problems": 64, "value": 0.5, "low": 0.4, "high": 0.6}
    candidate = {"policy": "step_40", "score": 0.5, "share": 0.75, "tasks": {"sums": estimate}}
    write_json(
        Path(file),
        {"policy": "step_40", "candidates": [candidate], "draws": [0], "means": {"sums": {"greedy": [0.5]}}},
    )
    record = replace(finished.records[0], stage="choose", outputs={file: sha256_of(Path(file))})
    graph = metadata(replace(finished, records=(record,)), {}, {})["@graph"]
    (description,) = (
        each["description"] for each in graph if each.get("@type") == "CreateAction" and each["@id"] != "#run"
    )
    assert "The policy after step 40 is the best of 1" in description
    assert "a standard deviation of 0.0 points on sums" in description


def test_a_content_is_named_as_rfc_6920_does() -> None:
    hello = (
        "7f83b1657ff1fc53b92dc18148a1d65dfc2d4b1fa3d677284addd200126d9069"  # of "Hello World!", section 8.1 of the RFC
    )
    assert by_digest(hello) == "ni:///sha-256;f4OxZX_x_FO5LcGBSKHWXfwtSx-j1ncoSt3SABJtkGk"
