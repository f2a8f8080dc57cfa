from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.config.refusal import refused

from dagrpo.config.mistakes import PATTERNS
from dagrpo.config.overlay import merged, with_overrides
from dagrpo.config.schema import Params, parse, read_params
from dagrpo.core.experiment import learned


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("training: {setps: 3}", "unknown key `training.setps`: the nearest known key is `training.steps`."),
        (
            "training: {lora: {r: 16}}",
            "unknown key `training.lora.r`: `training.lora` has the keys rank, alpha, target_modules, vision and serving.",
        ),
        ("training: {lora: true}", "`training.lora` is True: it is a section, so give it keys, such as {rank: ...}."),
        ("training.steps: 3", "write it below its section, `training: {steps: ...}`"),
        ("runtime.engine.threads: 3", "`runtime: {engine.threads: ...}`"),
        ("experiment: {train: 'roman:numerals'}", "write roman.numerals, with a dot between module and task"),
        ("experiment: {train: 3}", "`experiment.train` is 3: input should be a valid string"),
        ("experiment: {train: []}", "`experiment.train` is []: give at least 1 of them."),
        ("experiment: {train: {}}", "`experiment.train` is {}: give at least 1 of them."),
        (
            "experiment: {train: [roman, 'roman:two']}",
            "`experiment.train.1` is 'roman:two': write roman.two, with a dot",
        ),
        ("experiment: {train: {'roman:two': 1}}", "`experiment.train.roman:two` is 'roman:two': write roman.two"),
        (
            "experiment: {train: {a: -0.5, b: 1}}",
            "`experiment.train.a` is -0.5: input should be greater than or equal to 0",
        ),
        ("experiment: {train: {a: .nan, b: 1}}", "`experiment.train.a` is nan: input should be a finite number"),
        ("experiment: {train: {a: half, b: 1}}", "`experiment.train.a` is 'half': input should be a valid number"),
        ("experiment: {train: {a: 0, b: 0.0}}", "experiment.train has only shares of 0"),
        ("experiment: {train: [a, b, a]}", "experiment.train contains duplicates: ['a', 'b', 'a']; name each once"),
        ("experiment: {train: {a: 1, b: 1}, evaluate: [a], tasks: [a]}", "set it to ['a', 'b']"),
        ("training: {steps: many}", "`training.steps` is 'many': input should be a valid integer"),
        ("runtime: {training: {layout: packd}}", "input should be 'padded' or 'packed'; the nearest one is 'packed'"),
        ("training: {steps: 0}", "`training.steps` is 0: input should be greater than or equal to 1"),
        ("reward: {permuted: 1}", "`reward.permuted` is 1: input should be a valid boolean"),
        ("checkpoint: {format: pickle}", "`checkpoint.format` is 'pickle'"),
        ("experiment: {name: ../x}", "`experiment.name` is '../x'"),
        ("experiment: {name: My Run}", "`experiment.name` is 'My Run': write small letters, digits, `_`, `.` and `-`"),
        ("experiment: {name: null}", "`experiment.name` is empty: input should be a valid string."),
        ("experiment: {seeds: []}", "`experiment.seeds` is []: give at least 1 of them."),
        ("experiment: {seeds: 0}", "`experiment.seeds` is 0: write a list, such as [0]."),
        (
            "algorithm: {loss: {name: gspo, clip_lo: 0.001}}",
            "unknown key `algorithm.loss.clip_lo`: the nearest known key is `algorithm.loss.clip_low`.",
        ),
        ("algorithm: {advantage: {name: rloo, normalize_by_std: true}}", "rloo has no such key, so delete it."),
        (
            "reward: {components: {overlong: {bufer: 3}}}",
            "the nearest known key is `reward.components.overlong.buffer`.",
        ),
        ("algorithm: {loss: {name: gsp}}", "`gsp` is not a loss: the nearest known one is `gspo`; correct algorithm."),
        ("reward: {components: {acuracy: {}}}", "the nearest known one is `accuracy`; correct reward.components"),
        ("reward: {verifier: math_dap}", "the nearest known one is `math_dapo`; correct reward.verifier"),
        ("reward: {wrong: -1.0}", "the nearest known key is `reward.components.accuracy.wrong`."),
        ("algorithm: {clip_low: 0.1}", "the nearest known key is `algorithm.loss.clip_low`."),
        # A key that has moved is known by its last word, first of all in its own section, and not by what is spelled alike.
        ("evaluation: {samples: 3}", "the nearest known key is `evaluation.sampling.samples`."),
        ("runtime: {replicas: 2}", "the nearest known key is `runtime.engine.replicas`."),
        ("training: {coefficient: 0.1}", "the nearest known key is `algorithm.kl.coefficient`."),
        ("training: {rank: 8}", "the nearest known key is `training.lora.rank`."),
    ],
)
def test_a_mistake_is_told_by_its_key_with_the_nearest_known_one_or_what_to_write(values: str, sentence: str) -> None:
    assert sentence in refused(yaml.safe_load(values))


@pytest.mark.parametrize(
    ("train", "tasks", "shares"),
    [
        ("a", ("a",), {}),
        (["b", "a"], ("a", "b"), {}),
        ({"b": 3, "a": 1}, ("a", "b"), {"a": 0.25, "b": 0.75}),
        ({"a": 2.0, "b": 0}, ("a", "b"), {"a": 1.0}),
    ],
)
def test_what_is_trained_on_is_a_task_a_list_or_tasks_with_shares(
    train: str | list[str] | dict[str, float], tasks: tuple[str, ...], shares: dict[str, float]
) -> None:
    experiment = parse(
        {"experiment": {"train": train, "evaluate": ["a"], "tasks": ["a", *({*tasks} - {"a"})]}}
    ).experiment
    assert (experiment.train_tasks, experiment.shares) == (tasks, shares)
    assert list(learned(experiment.train, tasks)) == [task for task in tasks if not shares or task in shares]


def test_several_mistakes_are_several_sentences() -> None:
    components = {"overlong": {"bufer": 3}, "accuracy": {"right": 1.0, "correct": "much"}}
    assert len(refused({"reward": {"components": components}}).splitlines()) == 3


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
    sentence = refused({"runtime": {"engine": {"servers": ["http://127.0.0.1:30000", address]}}})
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
    sentence = refused({"runtime": {"engine": {"servers": f"http://alice:{SECRET}@lab:30000"}}})
    assert "`runtime.engine.servers` is 'http://alice:***@lab:30000'" in sentence


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


def test_overrides_are_laid_over_their_section_wherever_they_stand() -> None:
    config = {"training__steps": 3, "experiment__seeds": ["1", "2"], "data__mirror": "null", "training": {"steps": 9}}
    expected = {"training": {"steps": 3}, "experiment": {"seeds": [1, 2]}, "data": {"mirror": None}}
    assert with_overrides(config) == expected
    loss = {
        "algorithm__loss": {"name": "gspo", "clip_low": "0.1"}
    }  # as Snakemake reads `--config 'algorithm__loss={...}'`
    assert with_overrides(loss)["algorithm"]["loss"] == {"name": "gspo", "clip_low": 0.1}


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


def test_a_component_is_added_beside_the_ones_there_are() -> None:
    config = {**Params().model_dump(), "reward__components__format__weight": 0.1}
    components = parse(with_overrides(config)).reward.components
    assert {name: component.weight for name, component in components.items()} == {"accuracy": 1.0, "format": 0.1}


def test_only_the_name_of_a_plug_in_drops_what_stood_beside_it() -> None:
    values = merged(Params().model_dump(), {"experiment": {"name": "x"}, "model": {"name": "y"}})
    assert parse(values).experiment.seeds == [0]
    assert parse(values).model.name == "y"


def test_every_pattern_of_the_schema_has_words() -> None:
    assert set(_patterns(Params.model_json_schema())) == set(PATTERNS)


def _patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _patterns(inner)
