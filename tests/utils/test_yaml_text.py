"""YAML that is not plain is refused in a sentence; accepted YAML means the same to every reader."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from dagrpo.core.errors import UserError
from dagrpo.utils.yaml_text import read_yaml

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


def _refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {steps: 1_000}", "line 1: '1_000': YAML 1.1 and 1.2 read it differently"),
        ("training:\n  steps: 010", "line 2: '010'"),
        ("training: {steps: 0o10}", "'0o10'"),
        ("training: {steps: 1:30}", "'1:30'"),
        ("reward: {permuted: yes}", "'yes'"),
        ("on: 1", "'on'"),
        ("experiment: {name: 2024-01-01}", "'2024-01-01'"),
        ("training: {steps: =}", "'='"),
        (LAUGHS, "line 2: it refers to another place: write the value out"),
        ("a: &a [*a]", "it refers to another place"),
        ("training: {steps: 1, steps: 2}", "line 1: the key steps stands twice"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor for the tag"),
        ("a: !!python/name:os.system", "could not determine a constructor for the tag"),
        ("a: !!int 'x'", "invalid literal"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ("training: {? [a] : 2}", "unhashable key"),
        ("a" * 5000 + ": 1", "line 1: "),
        ("a: b\0c", "special characters are not allowed"),
        ("a:\n\tb: 1", "line 2: found character '\\t'"),
        ("a: 1\n---\nb: 2", "line 2: but found another document"),
        ("", "does not hold sections"),
        ("just text", "does not hold sections"),
        ("__use_yte__: true\na: 1", "would have Snakemake run the file as a program"),
    ],
)
def test_what_is_not_plain_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert words in _refused(path)


@pytest.mark.parametrize("content", ["a: é".encode("latin-1"), "a: 1".encode("utf-16"), b"a: \xed\xa0\x80"])
def test_what_is_not_utf_8_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    assert "(it is not UTF-8): save it as UTF-8" in _refused(path)


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path) == {"a": 1}


_PLAIN = st.text(st.sampled_from("0123456789abcdefoxyestrunlfn._-+:~=<TFNYO"), min_size=1, max_size=7)


@settings(max_examples=60)
@example("._")
@example("-_1")
@example("4_e+8")
@example("-0o7")
@given(_PLAIN)
def test_what_is_accepted_means_the_same_in_both_versions_of_yaml(
    tmp_path_factory: pytest.TempPathFactory, scalar: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "scalar.yaml"
    path.write_text(f"a: {scalar}\n")
    try:
        values = read_yaml(path)
    except UserError:
        return
    as_1_1, as_1_2 = yaml.safe_load(path.read_text()), YAML(typ="safe", pure=True).load(path.read_text())
    assert values == as_1_1
    if as_1_1 != as_1_2:  # an exponent without a point or a sign, which a section reads as a number
        assert float(as_1_1["a"]) == as_1_2["a"]
