"""Kept policies that something else has written: named and refused, whatever they claim, before memory is taken for it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.checkpoints.test_kept import keep_three, moved

from dagrpo.checkpoints import kept
from dagrpo.checkpoints.source import open_tensors
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.manifest import entry_of

MIB = 1 << 20
Described = dict[str, Any]
Columns = list[pa.Array]


def _file(folder: Path) -> Path:
    return folder / kept.delta_file(40)


def _list(folder: Path) -> None:
    listed = read_json(folder / "manifest.json")
    listed["files"][_file(folder).name] = asdict(entry_of(_file(folder)))
    write_json(folder / "manifest.json", listed)


def _rewrite(
    folder: Path,
    described: Callable[[Described], Any] = lambda described: described,
    columns: Callable[[Columns], Columns] = lambda columns: columns,
    count: int | None = -1,
    *,
    compression: str | None = "zstd",
    text: Callable[[Any], str] = json.dumps,
) -> None:
    """Write the delta of step 40 again, with another description, other columns in its first batch, or another number of batches."""
    file = pa.ipc.open_file(_file(folder).read_bytes())
    batches = [file.get_batch(number).columns for number in range(file.num_record_batches)]
    batches[0] = columns(batches[0])
    metadata = {b"tensors": text(described(json.loads(file.schema.metadata[b"tensors"])))}
    schema = pa.schema([(name, part.type) for name, part in zip(["gaps", "changes", "more"], batches[0], strict=False)])
    batches = [[part.cast(field.type) for part, field in zip(b, schema, strict=False)] for b in [*batches, batches[-1]]]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(_file(folder)), schema.with_metadata(metadata), options=options) as writer:
        for batch in batches[:count]:
            batch += [pa.nulls(1)] * (len(schema) - len(batch))
            writer.write(pa.record_batch(batch, schema=schema))


def _described(change: Callable[[Described], Any], **more: Any) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, change, **more)


def _first(dtype: str | None = None, shape: Any = None) -> Callable[[Path], None]:
    """Describe the first tensor as one of another type or shape."""

    def change(described: Described) -> Described:
        name = min(described)
        return described | {name: [dtype or described[name][0], described[name][1] if shape is None else shape]}

    return _described(change)


def _batch(columns: Callable[[Columns], Columns], **more: Any) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, columns=columns, **more)


def _large(*parts: bytes | None) -> pa.Array:
    return pa.array(parts, pa.large_binary())


def _pointing(begin: int, end: int) -> Callable[[Path], None]:
    """Let the row of the first column lie elsewhere than in its bytes."""

    def forge(folder: Path) -> None:
        _rewrite(folder, columns=lambda columns: [_large(bytes(4099)), columns[1]], compression=None)
        content, honest = _file(folder).read_bytes(), bytes(8) + (4099).to_bytes(8, "little")
        assert content.count(honest) == 1
        forged = b"".join(number.to_bytes(8, "little", signed=True) for number in (begin, end))
        _file(folder).write_bytes(content.replace(honest, forged))

    return forge


def _forge_digest(folder: Path) -> None:
    listed = read_json(folder / "manifest.json")
    listed["policies"]["40"]["digest"] = "0" * 64
    write_json(folder / "manifest.json", listed)


FORGERIES = {
    "elements_without_end": _first(shape=[2**63]),
    "elements_beyond_memory": _first(shape=[10**14]),
    "negative_shape": _first(shape=[-1]),
    "fraction_as_shape": _first(shape=[4.0]),
    "truth_as_shape": _first(shape=[True]),
    "no_shape": _first(shape="four"),
    "module_as_type": _first("nn"),
    "function_as_type": _first("load"),
    "half_bytes_as_type": _first("float4_e2m1fn_x2"),
    "another_type": _first("float16"),
    "unknown_tensor": _described(lambda described: described | {"x": ["float32", [4]]}),
    "no_tensors": _described(lambda _: {}, count=0),
    "list_of_tensors": _described(list),
    "no_json": _described(lambda _: None, text=lambda _: "{"),
    "nested_without_end": _described(lambda _: None, text=lambda _: "[" * 100_000),
    "tensors_twice": _described(lambda d: d, text=lambda d: json.dumps(d).replace("{", '{"x": 1, "x": 2, ', 1)),
    "batch_missing": _described(lambda described: described, count=1),
    "batch_left_over": _described(lambda described: described, count=None),
    "more_columns": _batch(lambda columns: [*columns, pa.nulls(1)]),
    "dictionary": _batch(lambda columns: [columns[0].dictionary_encode(), columns[1]], count=1),
    "view": _batch(lambda columns: [columns[0].cast(pa.binary_view()), columns[1]]),
    "two_rows": _batch(lambda columns: [pa.concat_arrays([part, part]) for part in columns]),
    "no_row": _batch(lambda columns: [part[:0] for part in columns]),
    "null": _batch(lambda columns: [_large(None), columns[1]]),
    "gaps_expand": _batch(lambda columns: [_large(bytes(64 * MIB)), columns[1]]),
    "gaps_of_255_expand": _batch(lambda columns: [_large(b"\xff" * 64 * MIB), _large(b"")]),
    "changes_expand": _batch(lambda columns: [columns[0], _large(bytes(64 * MIB))]),
    "points_outside": _pointing(10**12, 10**12 + 9),
    "ends_outside": _pointing(0, 10**12),
    "points_before": _pointing(-4096, 5),
    "ends_before_it_begins": _pointing(5, 0),
    "other_digest": _forge_digest,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_delta_is_named_whatever_reads_it(
    pristine: Path, tmp_path: Path, forge: Callable[[Path], None]
) -> None:
    keep_three(tmp_path / "kept", pristine)
    forge(tmp_path / "kept")
    _list(tmp_path / "kept")
    named = r"step_00040\.arrow, the delta of step 40, "
    readers: list[Callable[[Path, Path, int], object]] = [
        kept.open_kept,
        lambda folder, initial, step: kept.restore(folder, initial, step, tmp_path / "restored"),
    ]
    for read in readers:
        with pytest.raises(UserError, match=named):
            read(tmp_path / "kept", pristine, 40)
    with pytest.raises(UserError, match=named):
        kept.select(tmp_path / "kept", pristine, [40], tmp_path / "selected")
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    assert kept.open_kept(tmp_path / "kept", pristine, 20)


@pytest.mark.parametrize("name", ["gaps_expand", "gaps_of_255_expand", "changes_expand"])
def test_what_expands_is_not_decompressed(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keep_three(tmp_path, pristine)
    FORGERIES[name](tmp_path)
    _list(tmp_path)
    read = pa.ipc.read_record_batch

    def reading(*given: Any) -> pa.RecordBatch:
        batch = read(*given)
        assert batch.nbytes < MIB
        return batch

    monkeypatch.setattr(pa.ipc, "read_record_batch", reading)
    with pytest.raises(UserError):
        kept.open_kept(tmp_path, pristine, 40)


@pytest.mark.parametrize(
    "change",
    [
        lambda listed: listed["policies"].update({"0040": listed["policies"]["20"]}),
        lambda listed: listed["policies"].update({"+42": listed["policies"]["20"]}),
        lambda listed: listed["policies"].update({" 41": listed["policies"]["20"]}),
        lambda listed: listed["policies"]["20"].update(after="0"),
        lambda listed: listed["policies"]["20"].update(more=1),
        lambda listed: listed["files"].update({"/proc/self/mem": {"sha256": "0" * 64, "bytes": 0}}),
        lambda listed: listed["files"].pop(kept.delta_file(20)),
    ],
)
def test_a_forged_manifest_lists_no_policies(pristine: Path, tmp_path: Path, change: Callable[[Any], object]) -> None:
    kept.write(tmp_path, pristine, 20, moved(open_tensors(pristine), 1))
    listed = read_json(tmp_path / "manifest.json")
    change(listed)
    write_json(tmp_path / "manifest.json", listed)
    assert not kept.whole_steps(tmp_path)
    with pytest.raises(UserError, match="does not list kept policies"):
        kept.steps(tmp_path)
