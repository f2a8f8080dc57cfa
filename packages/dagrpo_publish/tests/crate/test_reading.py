"""A crate of somebody else is read within limits, and whatever it holds ends in a crate or in a sentence."""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.changes.made_up import Project

from dagrpo.core.errors import UserError
from dagrpo_publish.crate import reading
from dagrpo_publish.crate.finished import Finished
from dagrpo_publish.crate.reading import read_crate

Graph = list[dict[str, Any]]


def _metadata(crate: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((crate / "ro-crate-metadata.json").read_text())
    return content


def _change(crate: Path, change: Callable[[Graph], object]) -> None:
    content = _metadata(crate)
    change(content["@graph"])
    (crate / "ro-crate-metadata.json").write_text(json.dumps(content))


def _record(graph: Graph) -> dict[str, Any]:
    return next(each for each in graph if each["@id"].endswith("policy/provenance.json") and "sha256" in each)


def _rewrite(crate: Path, **changed: Any) -> None:
    """Change a record, with a digest that fits."""
    (path,) = crate.glob("results/*/runs/seed_0/policy/provenance.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    _change(crate, lambda graph: _record(graph).update(sha256=digest))


def test_what_was_written_is_read(written: tuple[Project, Finished], crate: Path) -> None:
    read, finished = read_crate(crate), written[1]
    assert read.experiment == finished.name
    assert [(each.stage, each.seed, each.outputs) for each in read.records] == [
        (each.stage, each.seed, each.outputs) for each in finished.records
    ]
    assert read.code == finished.code
    assert len(read.scores) == 2
    shutil.copytree(crate, crate.parent / "model/crate")
    assert read_crate(crate.parent / "model") == read, "of a published model"
    with pytest.raises(UserError, match=r"has no ro-crate-metadata.json, nor a folder `crate` with one"):
        read_crate(crate.parent)


@pytest.mark.parametrize(
    "name",
    [
        "../provenance.json",
        "/etc/provenance.json",
        "a/../../provenance.json",
        "..%2fprovenance.json",
        "a//provenance.json",
    ],
)
def test_a_name_that_leads_out_is_refused(crate: Path, name: str) -> None:
    _change(crate, lambda graph: _record(graph).update({"@id": name}))
    with pytest.raises(UserError, match="which is not a file in it: do not use this crate"):
        read_crate(crate)


def test_a_link_that_leads_out_and_a_file_of_another_content_are_refused(crate: Path, tmp_path: Path) -> None:
    (path,) = crate.glob("results/*/runs/seed_0/policy/provenance.json")
    whole = path.read_text()
    path.write_text(whole + " ")
    with pytest.raises(UserError, match="is not the file that ro-crate-metadata"):
        read_crate(crate)
    path.write_text(whole)
    outside = tmp_path / "elsewhere.json"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(UserError, match="which is not a file in it"):
        read_crate(crate)


@pytest.mark.parametrize(
    "changed",
    [
        {"stage": "../../train"},
        {"experiment": "../up"},
        {"experiment": "a" * 500},
        {"code": "no digest"},
        {"outputs": {"a": 3}},
        {"inputs": ["a"]},
        {"params": []},
        {"seed": -1},
        {"environment": {"torch": "x" * 10_000}},
    ],
)
def test_a_record_that_is_none_is_refused_with_its_field(crate: Path, changed: dict[str, Any]) -> None:
    _rewrite(crate, **changed)
    with pytest.raises(
        UserError, match=r"policy/provenance.json of the crate is not what it should be \(" + next(iter(changed))
    ):
        read_crate(crate)


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{}", '{"@graph": 3}', '{"@graph": [NaN]}', '{"@graph": [[]]}', "[" * 100_000]
)
def test_metadata_that_is_none_is_a_sentence(crate: Path, text: str) -> None:
    (crate / "ro-crate-metadata.json").write_text(text)
    with pytest.raises(UserError):
        read_crate(crate)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["@id", "hasPart", "sha256", "@type"]), inner)
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=4), st.integers(0, 10_000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_entities_give_a_crate_or_a_sentence(crate: Path, entities: list[Any], place: int) -> None:
    content = _metadata(crate)
    graph = content["@graph"]
    at = place % len(graph)
    other = crate.with_name("other.crate")
    shutil.copytree(crate, other, dirs_exist_ok=True)
    (other / "ro-crate-metadata.json").write_text(
        json.dumps(content | {"@graph": [*graph[:at], *entities, *graph[at + 1 :]]})
    )
    with suppress(UserError):
        assert read_crate(other).experiment == "arithmetic_tiny"


def test_many_large_records_are_refused_together(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each could be read, all of them together would take minutes and gigabytes."""
    monkeypatch.setattr(reading, "LARGEST", 1 << 18)
    _rewrite(crate, params={f"{number:x}": 1 for number in range(2_000)})
    record = _record(_metadata(crate)["@graph"])
    names = [f"{number}/provenance.json" for number in range(20)]
    for name in names:
        (crate / name).parent.mkdir()
        (crate / name).hardlink_to(crate / record["@id"])
    _change(crate, lambda graph: graph.extend(record | {"@id": name} for name in names))
    with pytest.raises(UserError, match="left of the crate's limit"):
        read_crate(crate)
