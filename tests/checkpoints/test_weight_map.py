"""The index of sharded weights: whatever it names, a file of the folder or one sentence."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile import NOT_IN_THE_FOLDER, names, refusal

from dagrpo.checkpoints.weight_map import INDEX, files_of_weights, read_weight_map
from dagrpo.core.errors import UserError


def _index(folder: Path, weight_map: object) -> Path:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder / INDEX


@pytest.mark.parametrize("name", [*NOT_IN_THE_FOLDER, "weights.bin", "weights"], ids=lambda name: repr(name)[:20])
def test_a_name_that_leads_elsewhere_is_refused_in_a_sentence(tmp_path: Path, name: object) -> None:
    index = _index(tmp_path, {"w": name})
    with pytest.raises(UserError, match="which is not a safetensors file of its folder: do not use") as refusal:
        read_weight_map(index)
    assert len(str(refusal.value).replace(str(tmp_path), "")) < 300
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', "[" * 9000]
)
def test_what_is_no_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(UserError, match=INDEX):
        read_weight_map(tmp_path / INDEX)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=5), names, max_size=3) | names)
def test_any_index_gives_plain_names_or_a_sentence(weight_map: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = _index(Path(folder), weight_map)
        said = refusal(lambda: read_weight_map(index))
        assert len(said) < 500
        read = {} if said else read_weight_map(index)
        assert all(os.path.dirname(os.path.normpath(index.parent / name)) == folder for name in read.values())


def _shard(folder: Path, make: str, outside: Path) -> None:
    shard = folder / "a.safetensors"
    match make:
        case "pipe":
            os.mkfifo(shard)
        case "device":
            shard.symlink_to("/dev/zero")
        case "folder":
            shard.mkdir()
        case "absent":
            pass
        case "outside":
            (outside / "secret").write_bytes(b"s")
            shard.symlink_to(outside / "secret")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((make, "is missing, but .* names it") for make in ("pipe", "device", "folder", "absent")),
        ("outside", "is a link out of its folder: put the file itself there"),
    ],
)
def test_a_shard_that_is_no_file_of_the_folder_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, make: str, said: str
) -> None:
    _shard(tmp_path, make, tmp_path_factory.mktemp("outside"))
    _index(tmp_path, {"w": "a.safetensors"})
    with pytest.raises(UserError, match=said):
        files_of_weights(tmp_path)
