"""Our names and values in MLflow's form."""

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from dagrpo_mlflow.names import MAX_PARAM_VALUE, MAX_TAG_VALUE, digest_tags, flatten, metric_name, tag_value


def test_an_at_sign_in_a_metric_name_is_spelled_out() -> None:
    assert metric_name("gsm8k/pass@4") == "gsm8k/pass_at_4"


def test_nested_params_are_joined_with_dots_and_lists_stay_whole() -> None:
    params = {"rollout": {"dtype": "float32", "engine": {"servers": []}}, "data": {"mirror": None}, "clip": 0.2}
    assert flatten(params) == {
        "rollout.dtype": "float32",
        "rollout.engine.servers": "[]",
        "data.mirror": "null",
        "clip": "0.2",
    }


def test_a_value_over_the_limit_is_cut_and_ends_with_its_digest() -> None:
    text = "x" * (MAX_PARAM_VALUE + 1)
    cut = flatten({"long": text})["long"]
    assert len(cut) == MAX_PARAM_VALUE
    assert cut.endswith(f"...sha256:{hashlib.sha256(text.encode()).hexdigest()}")
    assert flatten({"fits": "x" * MAX_PARAM_VALUE})["fits"] == "x" * MAX_PARAM_VALUE


def test_a_path_outside_the_project_still_makes_a_valid_tag_key() -> None:
    digests = {"../raw data/zweigstra\u00dfe.jsonl": "a", "/raw//train.jsonl": "b"}
    assert digest_tags("input", digests) == {"input.../raw data/zweigstra_e.jsonl": "a", "input./raw/train.jsonl": "b"}


@given(st.text(min_size=1))
def test_every_metric_name_becomes_one_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    key = metric_name("x" + name)
    assert len(key) <= 250
    assert re.fullmatch(r"[A-Za-z0-9_\-. :/]+", key)
    _validate_metric_name(key)


@given(st.text())
def test_every_tag_value_fits(value: str) -> None:
    assert len(tag_value(value * 100)) <= MAX_TAG_VALUE
