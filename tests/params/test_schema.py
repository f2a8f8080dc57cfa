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
        (
            {"training": {"samples_per_prompt": 1}},
            "algorithm.advantage grpo compares the samples of a prompt: set training.samples_per_prompt to 2 or more",
        ),
        (
            {
                "algorithm": {
                    "loss": {"name": "on_policy_distillation"},
                    "teacher": {"source": "initial", "prompt": "with_solution"},
                },
                "training": {"samples_per_prompt": 1, "zero_variance_filter": True},
            },
            "would leave out everything: set zero_variance_filter to false",
        ),
        ({"algorithm": {"loss": {"name": "ppo_clip", "clip_low": 0.3}}}, "use clip_high >= clip_low"),
        ({"algorithm": {"loss": {"name": "gspo", "clip_low": 0.2, "clip_high": 0.2}}}, "so delete them for 0.0003 and"),
        (
            {"algorithm": {"advantage": "grpo"}},
            "write algorithm.advantage: {name: ...} with one of batch_std, gdpo, gpg, grpo",
        ),
        (
            {"algorithm": {"advantage": {"name": "gdpo"}}},
            "accuracy is the only one with a weight: give reward.components",
        ),
        (
            {"algorithm": {"advantage": {"name": "maxrl"}, "kl": {"coefficient": 0.1, "place": "reward"}}},
            "set algorithm.kl.place to loss, or algorithm.kl.coefficient to 0",
        ),
        (
            {"algorithm": {"loss": {"name": "kl_cov"}}},
            "with training.mini_batches 1 there is none: set training.mini_batches to 2",
        ),
        ({"reward": {"components": {"accuracy": {"weight": 0.0}}}}, "give one of them a weight"),
        ({"reward": {"components": {"overlong": {"buffer": 20}}}}, "lower it below rollout.max_new_tokens (20)"),
        ({"reward": {"components": ["accuracy"]}}, "write a mapping from names to parameters"),
        ({"rollout": {"max_new_tokens": 1000}}, "max_position_embeddings is 256: raise the latter"),
        ({"rollout": {"top_k": 0}}, "give -1 to sample from all tokens"),
        ({"rollout": {"top_k": 1}}, "all samples of a prompt are the same"),
        ({"rollout": {"top_p": 0.9}}, "set rollout.top_k to 2 to 4096, or rollout.top_p to 1.0"),
        ({"rollout": {"top_k": 5000}}, "only where rollout.top_k is at most 4096"),
        ({"evaluation": {"sampling": {"top_k": 0}}}, "give -1 to sample from all tokens"),
        ({"runtime": {"engine": {"servers": ["http://127.0.0.1:1"]}}}, "set one of them otherwise"),
        ({"data": {"mirror": ""}}, "give a folder, or null"),
        (
            {"training": {"vision": "frozen", "vision_learning_rate": 0.1}},
            "set the first to null, or the second to trained",
        ),
        (
            {"training": {"vision": "frozen"}},
            "training.vision is of a vision tower, and the model has none: leave it out",
        ),
        ({"training": {"vision_learning_rate": 0.1}}, "training.vision_learning_rate is of a vision tower"),
        ({"sft": {"vision": "frozen"}}, "sft.vision is of a vision tower"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_the_remedy(values: dict[str, Any], words: str) -> None:
    sentence = _refused(values)
    assert words in sentence
    assert "\n" not in sentence


IN_REWARD = {"coefficient": 0.1, "place": "reward"}


@pytest.mark.parametrize(
    ("advantage", "words"),
    [
        ({"name": "grpo"}, "unless algorithm.advantage.normalize_by_std is false"),
        ({"name": "grpo_passk"}, "unless algorithm.advantage.normalize_by_std is false"),
        ({"name": "gpg"}, "takes groups whose rewards differ by the divergence alone for others"),
        ({"name": "maxrl"}, "which would no longer be above 0"),
        ({"name": "gdpo"}, "which the divergence is none of"),
    ],
    ids=lambda values: values["name"] if isinstance(values, dict) else "",
)
def test_a_divergence_in_the_reward_is_refused_where_it_would_not_stay_small(
    advantage: dict[str, Any], words: str
) -> None:
    components = {"accuracy": {}, "format": {"weight": 0.1}}
    values = {"algorithm": {"advantage": advantage, "kl": IN_REWARD}, "reward": {"components": components}}
    sentence = _refused(values)
    assert f"algorithm.advantage {advantage['name']} " in sentence
    assert words in sentence
    assert sentence.endswith("set algorithm.kl.place to loss, or algorithm.kl.coefficient to 0.")
    parse(merged(values, {"algorithm": {"kl": {"coefficient": 0.0}}}))


@pytest.mark.parametrize(
    "advantage",
    [
        {"name": "grpo", "normalize_by_std": False},
        {"name": "grpo_passk", "normalize_by_std": False},
        {"name": "rloo"},
        {"name": "reinforce_plus_plus"},
    ],
)
def test_a_divergence_in_the_reward_is_taken_by_estimators_in_which_it_stays_small(advantage: dict[str, Any]) -> None:
    parse({"algorithm": {"advantage": advantage, "kl": IN_REWARD}})


@pytest.mark.parametrize(
    ("components", "lowest"),
    [
        ({"accuracy": {"wrong": -0.5}}, "-0.5"),
        ({"accuracy": {"unverifiable": -0.25, "weight": 2.0}}, "-0.5"),
        ({"accuracy": {}, "overlong": {"weight": 0.5}}, "-0.5"),
        ({"accuracy": {}, "format": {"weight": -0.1}}, "-0.1"),
    ],
)
def test_maxrl_is_refused_where_a_reward_can_be_negative(components: dict[str, Any], lowest: str) -> None:
    sentence = _refused({"algorithm": {"advantage": {"name": "maxrl"}}, "reward": {"components": components}})
    assert f"maxrl takes no reward below 0, but reward.components can make one as low as {lowest}: raise" in sentence


@pytest.mark.parametrize(
    "components",
    [
        {"accuracy": {}},
        {"accuracy": {"wrong": 1.0, "missing": 1.0, "unverifiable": 1.0}, "overlong": {}},  # 1 - 1
        {
            "accuracy": {"wrong": 0.3, "missing": 0.3, "unverifiable": 0.3},
            "overlong": {"weight": 0.1},
            "turn_limit": {"weight": 0.2},
        },
        {"accuracy": {}, "overlong": {"weight": 0.0}},
        {"accuracy": {}, "overlong": {"weight": -1.0}},
        {"accuracy": {}, "reported": {}},  # what is reported is known in the run alone
    ],
)
def test_maxrl_is_for_rewards_that_are_not_known_to_be_negative(components: dict[str, Any]) -> None:
    parse({"algorithm": {"advantage": {"name": "maxrl"}}, "reward": {"components": components}})


LEARN_FROM_EQUAL: list[dict[str, Any]] = [
    {"name": "remax"},
    {"name": "reinforce_plus_plus"},
    {"name": "gdpo"},
    {"name": "optimal_token_baseline", "learns_lone_tail": True},
]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"zero_variance_filter": True}, "training.zero_variance_filter leaves out: set that to false"),
        ({"dynamic_sampling": {"max_rounds": 2}}, "training.dynamic_sampling throws away: set its max_rounds and"),
        ({"dynamic_sampling": {"oversampling": 1.5}}, "training.dynamic_sampling throws away: set its max_rounds and"),
    ],
)
@pytest.mark.parametrize("advantage", LEARN_FROM_EQUAL, ids=lambda advantage: str(advantage["name"]))
def test_groups_that_an_estimator_learns_from_are_not_thrown_away(
    advantage: dict[str, Any], training: dict[str, Any], words: str
) -> None:
    values = {
        "algorithm": {"advantage": advantage},
        "reward": {"components": {"accuracy": {}, "format": {"weight": 0.1}}},
    }
    parse(values)
    sentence = _refused(values | {"training": training})
    assert f"{advantage['name']} can learn from groups of equal rewards, which {words}" in sentence
    parse({"algorithm": {"advantage": {"name": "optimal_token_baseline"}}, "training": training})


@pytest.mark.parametrize(
    ("kl", "words"),
    [
        ({"estimator": "k1", "coefficient": 0.1}, "has no gradient on average: write k1+ or k3, or set"),
        *(
            (
                {"estimator": estimator, "corrected": True},
                "set algorithm.kl.estimator to k1 or k3, or corrected to false",
            )
            for estimator in ("abs", "k2", "k1+", "abs+", "k3+")
        ),
        ({"corrected": True, "place": "reward"}, "set algorithm.kl.place to loss, or it to false"),
        ({"estimator": "k1+", "place": "reward"}, "write k1, or set algorithm.kl.place to loss"),
    ],
)
def test_a_divergence_whose_gradient_is_not_one_of_a_divergence_is_refused(kl: dict[str, Any], words: str) -> None:
    assert words in _refused({"algorithm": {"kl": kl}})


def test_an_estimator_without_a_coefficient_is_nobodys_mistake() -> None:
    assert parse({"algorithm": {"kl": {"estimator": "k1"}}}).algorithm.kl.coefficient == 0


SECRET = "m4rked-s3cret"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (f"http://alice:{SECRET}@lab:30000", "has a user or a password"),
        (f"https://{SECRET}@lab", "has a user or a password"),
        (f"http://lab:30000?api_key={SECRET}", "has more than a host, a port and a path"),
        (f"http://alice:{SECRET}/x@lab", "is not one"),
        (f"http://alice:12/{SECRET}@lab", "is not one"),
        (f"http://[{SECRET}", "is not one"),
        (f"http://{SECRET}:65536", "is not one"),
        (f"http://{SECRET}:0", "is not one"),
        (f"http:///{SECRET}", "is not one"),
        (f"ftp://{SECRET}", "is not one"),
        (f"http://lab/ {SECRET}", "is not one"),
        (SECRET, "is not one"),
        ("", "is not one"),
    ],
)
def test_an_address_of_a_server_with_a_password_or_none_at_all_is_refused_unquoted(address: str, words: str) -> None:
    sentence = _refused({"runtime": {"engine": {"servers": ["http://127.0.0.1:30000", address]}}})
    assert f"address 2 of runtime.engine.servers {words}" in sentence
    assert "http://127.0.0.1:30000" in sentence.partition("write ")[2], "how one is written"
    assert SECRET not in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:30000", "https://lab/servers/1/", "http://[::1]:1", "HTTP://lab"]
)
def test_an_address_of_a_server_is_taken_as_it_is(address: str) -> None:
    params = parse({"rollout": {"deterministic": False}, "runtime": {"engine": {"servers": [address]}}})
    assert params.runtime.engine.servers == [address]


def test_a_password_where_a_list_belongs_is_not_quoted() -> None:
    sentence = _refused({"runtime": {"engine": {"servers": f"http://alice:{SECRET}@lab:30000"}}})
    assert "`runtime.engine.servers` is 'http://alice:***@lab:30000'" in sentence


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"algorithm": {"loss": {"name": "gspo", "clip_lo": 0.001}}},
            "unknown key `algorithm.loss.clip_lo`: the nearest known key is `algorithm.loss.clip_low`.",
        ),
        (
            {"algorithm": {"advantage": {"name": "rloo", "normalize_by_std": True}}},
            "unknown key `algorithm.advantage.normalize_by_std`: rloo has no such key, so delete it.",
        ),
        (
            {"reward": {"components": {"overlong": {"bufer": 3}}}},
            "unknown key `reward.components.overlong.bufer`: the nearest known key is `reward.components.overlong.buffer`.",
        ),
        (
            {"algorithm": {"loss": {"name": "gsp"}}},
            "`gsp` is not a loss: the nearest known one is `gspo`; correct algorithm.",
        ),
        ({"reward": {"components": {"acuracy": {}}}}, "the nearest known one is `accuracy`; correct reward.components"),
        ({"reward": {"verifier": "math_dap"}}, "the nearest known one is `math_dapo`; correct reward.verifier"),
        ({"reward": {"wrong": -1.0}}, "the nearest known key is `reward.components.accuracy.wrong`."),
        ({"algorithm": {"clip_low": 0.1}}, "the nearest known key is `algorithm.loss.clip_low`."),
    ],
)
def test_a_mistake_inside_a_plug_in_is_told_by_the_keys_of_that_plug_in(values: dict[str, Any], sentence: str) -> None:
    assert sentence in _refused(values)


def test_mistakes_in_several_components_are_several_sentences() -> None:
    components = {"overlong": {"bufer": 3}, "accuracy": {"right": 1.0, "correct": "much"}}
    assert len(_refused({"reward": {"components": components}}).splitlines()) == 3


def test_two_mistakes_are_two_sentences() -> None:
    assert len(_refused({"training": {"steps": 0, "lr": 1.0}}).splitlines()) == 2


@given(st.sampled_from(["1e-4", "2.5E-05", "1e0"]))
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


@pytest.mark.parametrize("overrides", [("name", "clip_low"), ("clip_low", "name")])
def test_another_loss_keeps_nothing_of_the_parameters_before_it(overrides: tuple[str, str]) -> None:
    values = {"algorithm__loss__name": "gspo", "algorithm__loss__clip_low": 0.0002}
    config = {**Params().model_dump(), **{key: values[key] for key in map("algorithm__loss__{}".format, overrides)}}
    assert with_overrides(config)["algorithm"]["loss"] == {"name": "gspo", "clip_low": 0.0002}
    assert parse(with_overrides(config)).algorithm.loss.model_dump() == {
        "name": "gspo",
        "clip_low": 0.0002,
        "clip_high": 0.0004,
    }


def test_the_same_loss_keeps_its_other_parameters() -> None:
    config = {**Params().model_dump(), "algorithm__loss__clip_high": 0.28, "algorithm__loss__name": "ppo_clip"}
    loss = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
    assert parse(with_overrides(config)).algorithm.loss.model_dump() == loss


def test_a_component_is_added_beside_the_ones_there_are() -> None:
    config = {**Params().model_dump(), "reward__components__format__weight": 0.1}
    components = parse(with_overrides(config)).reward.components
    assert {name: component.weight for name, component in components.items()} == {"accuracy": 1.0, "format": 0.1}


def test_only_the_name_of_a_plug_in_drops_what_stood_beside_it() -> None:
    values = merged(Params().model_dump(), {"experiment": {"name": "x"}, "model": {"name": "y"}})
    assert parse(values).experiment.seeds == [0]
    assert parse(values).model.name == "y"


@given(st.sampled_from(all_keys()))
def test_merging_nothing_changes_nothing(key: str) -> None:
    values = Params().model_dump()
    assert merged(values, {}) == values
    assert merged(values, {key.split(".")[0]: {}}) == values
