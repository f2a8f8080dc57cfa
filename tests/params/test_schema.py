from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.params.overlay import merged, with_overrides
from dagrpo.params.schema import Params, all_keys, parse, read_params


def _refused(values: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="params") as caught:
        parse(values)
    return str(caught.value)


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    sentence = _refused({"training": {"setps": 3}})
    assert sentence == "params.yaml: unknown key `training.setps`: the nearest known key is `training.steps`."


def test_an_unknown_section_is_refused() -> None:
    assert "unknown key `trainig`: the nearest known key is `training`" in _refused({"trainig": {}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"training": {"steps": "many"}}, "`training.steps` is 'many': input should be a valid integer"),
        ({"training": {"steps": 0}}, "`training.steps` is 0: input should be greater than or equal to 1"),
        ({"reward": {"permuted": 1}}, "`reward.permuted` is 1: input should be a valid boolean"),
        ({"checkpoint": {"format": "pickle"}}, "`checkpoint.format` is 'pickle'"),
        ({"experiment": {"name": "../x"}}, "`experiment.name` is '../x'"),
    ],
)
def test_a_wrong_type_or_value_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    assert words in _refused(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"experiment": {"seeds": [1, 1]}}, "names something twice"),
        ({"experiment": {"tasks": ["gsm8k"]}}, "set it to ['arithmetic']"),
        ({"model": {"source": "gguf"}}, "model.gguf is null: give the path"),
        ({"model": {"source": "hub", "repository": "a/b"}}, "give both"),
        ({"model": {"source": "hub", "repository": "a/b", "revision": "main"}}, "40 hex digits"),
        ({"model": {"gguf": "x.gguf"}}, "does not read it: set it to null"),
        ({"model": {"fresh": {"hidden_size": 130}}}, "not a multiple of num_attention_heads"),
        ({"model": {"fresh": {"num_key_value_heads": 3}}}, "does not divide num_attention_heads"),
        ({"training": {"mini_batches": 5}}, "does not divide prompts_per_step"),
        ({"algorithm": {"clip_low": 0.3}}, "use clip_high >= clip_low"),
        ({"rollout": {"max_new_tokens": 1000}}, "max_position_embeddings is 256: raise the latter"),
        ({"rollout": {"top_k": 0}}, "give -1 to sample from all tokens"),
        ({"evaluation": {"sampling": {"top_k": 0}}}, "give -1 to sample from all tokens"),
        ({"rollout": {"engine": {"servers": ["http://127.0.0.1:1"]}}}, "set one of them otherwise"),
        ({"data": {"mirror": ""}}, "give a folder, or null"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_the_remedy(values: dict[str, Any], words: str) -> None:
    sentence = _refused(values)
    assert words in sentence
    assert "\n" not in sentence


def test_two_mistakes_are_two_sentences() -> None:
    assert len(_refused({"training": {"steps": 0, "lr": 1.0}}).splitlines()) == 2


@given(st.sampled_from(["1e-4", "2.5E-05", "1e3"]))
def test_an_exponent_that_yaml_1_1_takes_for_text_is_a_number(text: str) -> None:
    assert parse({"training": {"learning_rate": text}}).training.learning_rate == float(text)


def test_parameters_cannot_be_changed_after_parsing() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Params().training.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a: [", "is not valid YAML"), (b"- 1", "does not hold sections"), (b"\xff\xfe\x00", "is not valid YAML")],
)
def test_an_unreadable_file_is_one_sentence_that_names_it(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        read_params(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"params.yaml is missing: `dagrpo use"):
        read_params(tmp_path / "params.yaml")


def test_overrides_are_laid_over_their_section_wherever_they_stand() -> None:
    config = {"training__steps": 3, "experiment__seeds": ["1", "2"], "data__mirror": "null", "training": {"steps": 9}}
    expected = {"training": {"steps": 3}, "experiment": {"seeds": [1, 2]}, "data": {"mirror": None}}
    assert with_overrides(config) == expected


@given(st.sampled_from(all_keys()))
def test_merging_nothing_changes_nothing(key: str) -> None:
    values = Params().model_dump()
    assert merged(values, {}) == values
    assert merged(values, {key.split(".")[0]: {}}) == values
