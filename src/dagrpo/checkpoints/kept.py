"""Policies of chosen steps of a run, as lossless deltas.

Each refers to the kept policy before it, the first to the initial checkpoint.
manifest.json names the files, and per kept step the digest of all tensors and the step that its delta refers to, 0 for the initial
checkpoint. A delta is an Arrow file with a record batch per block of each tensor: places and values of the elements whose bits
have changed, as numbers that are small for small changes, their bytes in planes, compressed by zstd.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from dagrpo.checkpoints.folder import copy_auxiliary, new_checkpoint, set_config_dtype
from dagrpo.checkpoints.manifest import tensor_digest, tensor_digest_of, verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.store import finish
from dagrpo.checkpoints.tensors import (
    NAMED_DTYPES,
    CastTensors,
    SomeTensors,
    Tensors,
    TensorSpec,
    dtype_name,
    raw_bytes,
    total_bytes,
)
from dagrpo.core.errors import UserError
from dagrpo.utils.file_names import leads_out
from dagrpo.utils.files import atomic_file, atomic_folder, read_json, remove, share, write_json
from dagrpo.utils.manifest import MANIFEST, FileEntry, entry_of, fault_of

INITIAL = 0  # the step of the initial checkpoint
BLOCK = 1 << 22  # elements that are compared at a time
_FARTHEST = (
    255  # a byte of the gaps: as many elements are equal, and the next one is, too, or is counted by the next byte
)
_SCHEMA = pa.schema([("gaps", pa.large_binary()), ("changes", pa.large_binary())])
_TENSORS = b"tensors"  # in the metadata of a delta: name, type and shape of each
_OFFSETS = 16  # bytes: two numbers say where the bytes of a row begin and end
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPolicy:
    """One kept policy: the digest of its tensors (see tensor_digest), and the step that its delta refers to."""

    digest: str
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPolicies:
    """The content of manifest.json: kept policies by step, and the digest of the initial checkpoint's tensors."""

    initial: str
    policies: dict[int, KeptPolicy]
    files: dict[str, FileEntry]

    def chain(self, step: int) -> list[int]:
        """Return the steps whose deltas lead from the initial checkpoint to a kept step, which comes last."""
        chain: list[int] = []
        while step != INITIAL:
            chain.insert(0, step)
            step = self.policies[step].after
        return chain


_ADAPTER = TypeAdapter(KeptPolicies)


def delta_file(step: int) -> str:
    """Return the name of a kept step's file."""
    return f"step_{step:05d}.arrow"


def steps(kept: Path) -> list[int]:
    """Return the kept steps of a folder in their order. Raises UserError if its manifest is missing or not of kept policies."""
    return sorted(read_kept(kept).policies)


def read_kept(kept: Path) -> KeptPolicies:
    """Read the manifest of a folder of kept policies. Raises UserError if it is missing, or not that of kept policies."""
    path = kept / MANIFEST
    content, fault = (
        read_json(path),
        "the files are not those of the steps, or something is written otherwise than by us",
    )
    try:
        listed = _ADAPTER.validate_python(content)
        is_ours = json.loads(json.dumps(asdict(listed))) == content
        is_ours = is_ours and listed.files.keys() == {delta_file(step) for step in listed.policies}
    except ValidationError as error:
        first, is_ours = error.errors()[0], False
        fault = f"{first['loc']}: {first['msg']}"
    if not is_ours:
        raise UserError(f"{path} does not list kept policies ({fault}): run the training that makes it again.")
    there = {INITIAL, *listed.policies}
    for step, policy in listed.policies.items():
        if not INITIAL <= policy.after < step or policy.after not in there:
            raise UserError(f"{path}: step {step} refers to step {policy.after}, which is not there: train again.")
    return listed


def write_kept(kept: Path, listed: KeptPolicies) -> None:
    """Write the manifest of a folder of kept policies, atomically."""
    write_json(kept / MANIFEST, asdict(listed))


def keep_only(kept: Path, chosen: Collection[int]) -> None:
    """Remove all policies but these, of `whole_steps`, from a folder, and what is in it besides; their deltas refer to none that goes."""
    if not chosen:
        remove(kept)
        return
    listed = read_kept(kept)
    files = {delta_file(step): listed.files[delta_file(step)] for step in chosen}
    policies = {step: listed.policies[step] for step in chosen}
    write_kept(kept, KeptPolicies(initial=listed.initial, policies=policies, files=files))
    for path in kept.iterdir():
        if path.name not in {MANIFEST, *files}:
            remove(path)


def whole_steps(kept: Path) -> list[int]:
    """Return the kept steps of a folder that can be restored: no file of theirs is damaged; none if the manifest is, or missing."""
    try:
        listed = read_kept(kept)
    except UserError:
        return []
    whole = {INITIAL}
    for step in sorted(listed.policies):
        if listed.policies[step].after in whole and _fault(kept, step, listed) is None:
            whole.add(step)
    return sorted(whole - {INITIAL})


def select(kept: Path, initial: Path, chosen: Sequence[int], destination: Path) -> None:
    """Write a folder with these steps of another one, each as the delta to the one before it: the same bytes whatever else was kept.

    Raises UserError if a file is damaged. Without a step, `kept` is not read.
    """
    with atomic_folder(destination) as folder:
        write_kept(folder, KeptPolicies(initial=tensor_digest_of(initial), policies={}, files={}))
        for after, step in pairwise([INITIAL, *chosen]):
            listed = read_kept(kept)
            if listed.policies[step].after != after:
                write(folder, initial, step, open_kept(kept, initial, step))
                continue
            _opened(kept, step, listed, open_tensors(initial))
            share(kept / delta_file(step), folder / delta_file(step))
            _add(folder, step, listed.policies[step], listed.files[delta_file(step)])


def write(kept: Path, initial: Path, step: int, policy: Tensors, before: Tensors | None = None) -> None:
    """Keep the policy of a step, in a folder that may have earlier ones. `before`: the one before it; None: restored from the folder.

    The manifest is written last. Equal policies give equal bytes. Holds one tensor and the one before in memory.
    """
    if not (kept / MANIFEST).is_file():
        write_kept(kept, KeptPolicies(initial=tensor_digest_of(initial), policies={}, files={}))
    after = max((other for other in steps(kept) if other < step), default=INITIAL)
    with atomic_file(kept / delta_file(step)) as temporary:
        _write_delta(temporary, open_kept(kept, initial, after) if before is None else before, policy)
    _add(kept, step, KeptPolicy(digest=tensor_digest(policy), after=after), entry_of(kept / delta_file(step)))


def _add(kept: Path, step: int, policy: KeptPolicy, entry: FileEntry) -> None:
    listed = read_kept(kept)
    policies, files = listed.policies | {step: policy}, listed.files | {delta_file(step): entry}
    write_kept(kept, KeptPolicies(initial=listed.initial, policies=policies, files=files))


def restore(kept: Path, initial: Path, step: int, folder: Path) -> None:
    """Write the policy of a kept step as a whole checkpoint in the format of `initial`, with the files beside its weights.

    Raises UserError if the step is not kept, `initial` is not the checkpoint that the run began with, or a delta is damaged or foreign.
    """
    tensors, digest = _open(kept, initial, step)
    origin = verify(initial)
    with new_checkpoint(folder, total_bytes(tensors)) as new:
        copy_auxiliary(initial, origin, new)
        set_config_dtype(
            new, next((s.dtype for s in tensors.specs.values() if s.dtype.is_floating_point), torch.float32)
        )
        _require_digest(kept, step, finish(new, origin.format, tensors).tensors.digest, digest)


def open_kept(kept: Path, initial: Path, step: int) -> Tensors:
    """Open the policy of a kept step, or the initial one for step 0, to be read tensor by tensor; checks its digest.

    Raises UserError as `restore` does.
    """
    if step == INITIAL:
        return open_tensors(initial)
    tensors, digest = _open(kept, initial, step)
    _require_digest(kept, step, tensor_digest(tensors), digest)
    return tensors


def _open(kept: Path, initial: Path, step: int) -> tuple[Tensors, str]:
    """Return the policy of a kept step, its files checked, and the digest that it must have."""
    listed = read_kept(kept)
    if step not in listed.policies:
        there = ", ".join(map(str, sorted(listed.policies))) or "none"
        raise UserError(f"{kept} keeps no policy of step {step}, but of {there}: name one of these.")
    if listed.initial != tensor_digest_of(initial):
        raise UserError(
            f"{kept} was written by a run that began with another checkpoint than {initial}: name that one."
        )
    first = open_tensors(initial)
    policy = _Policy(first, [_opened(kept, each, listed, first) for each in listed.chain(step)])
    return policy, listed.policies[step].digest


def _require_digest(kept: Path, step: int, digest: str, listed: str) -> None:
    if digest != listed:
        raise _unusable(kept / delta_file(step), step, "gives other tensors than were kept")


def _opened(kept: Path, step: int, listed: KeptPolicies, initial: Tensors) -> "_Delta":
    if (fault := _fault(kept, step, listed)) is not None:
        raise _unusable(kept / delta_file(step), step, fault)
    return _Delta(kept / delta_file(step), step, initial)


def _fault(kept: Path, step: int, listed: KeptPolicies) -> str | None:
    path = kept / delta_file(step)
    return "is a link out of its folder" if leads_out(path) else fault_of(path, listed.files[path.name])


def _unusable(path: Path, step: int, fault: str) -> UserError:
    return UserError(f"{path}, the delta of step {step}, {fault}: copy it again, or train again.")


class _Delta:
    """An opened file of changes of some tensors of the initial checkpoint, in one floating point type."""

    def __init__(self, path: Path, step: int, initial: Tensors) -> None:
        self._path, self._step = path, step
        with self._naming():
            source = pa.memory_map(str(path))
            source.seek(len(b"ARROW1\0\0"))  # a stream follows, and a list of its batches
            first, *self._batches = pa.ipc.MessageReader.open_stream(source)
            schema = pa.ipc.read_schema(first)
            names = [*json.loads(schema.metadata[_TENSORS])]
            casts = [CastTensors(SomeTensors(initial, names), dtype) for dtype in NAMED_DTYPES.values()]
            [self.specs, *_] = [c.specs for c in casts if schema.equals(_schema(c.specs), check_metadata=True)]
            counts = [len(_blocks(spec.numel)) for spec in self.specs.values()]
            if sum(counts) != len(self._batches):
                raise ValueError("another number of blocks")
        self._firsts = dict(
            zip(self.specs, accumulate(counts, initial=0), strict=False)
        )  # the block that a tensor begins with

    def applied(self, name: str, before: Tensor) -> Tensor:
        """Return a tensor, from the one before it, which is left alone."""
        with self._naming():
            spec = self.specs[name]
            values = _bits(before, spec).copy()
            for number, block in enumerate(_blocks(spec.numel), self._firsts[name]):
                _apply(self._batches[number], values[block])
        return torch.from_numpy(values.view(np.uint8)).view(spec.dtype).reshape(spec.shape)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except (
            pa.ArrowException,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            OSError,
        ):  # written by something else
            raise _unusable(self._path, self._step, "is not a delta of a policy") from None


class _Policy:
    """A kept policy: the tensors of the initial checkpoint, and the deltas that lead from them to it."""

    def __init__(self, initial: Tensors, deltas: Sequence[_Delta]) -> None:
        self._initial, self._deltas = initial, deltas
        self.specs = deltas[-1].specs

    def read(self, name: str) -> Tensor:
        tensor = self._initial.read(name)
        for delta in self._deltas:
            tensor = delta.applied(name, tensor)
        return tensor


def _apply(message: pa.ipc.Message, values: np.ndarray[Any, Any]) -> None:
    """Apply a block's batch in place. Nothing larger than the block's changes can be is decompressed."""
    if max(_declared(message)) > max(values.nbytes, _OFFSETS):
        raise ValueError("more bytes than a block has")
    batch = pa.ipc.read_record_batch(message, _SCHEMA)
    batch.validate(full=True)
    [gaps], [changes] = batch.to_pydict().values()
    decode(values, gaps, changes)


def _declared(message: pa.ipc.Message) -> list[int]:
    """Return the bytes that each buffer of a batch is said to have when decompressed; -1: it is not compressed.

    Field 2 of a Message is its RecordBatch, whose field 2 are places and lengths of the buffers in the body
    (https://github.com/apache/arrow/tree/main/format, Message.fbs; https://flatbuffers.dev/internals).
    """
    data, body = bytes(message.metadata), message.body

    def number(place: int, size: int = 4) -> int:
        return int.from_bytes(data[place : place + size], "little")

    place = number(0)
    for _ in range(2):
        fields = place - int.from_bytes(data[place : place + 4], "little", signed=True)
        place += number(fields + 4 + 2 * 2, 2)
        place += number(place)
    buffers = np.frombuffer(data, "<i8", 2 * number(place), place + 4).reshape(-1, 2)
    return [
        int.from_bytes(body[start : start + 8].to_pybytes(), "little", signed=True)
        for start, size in buffers.tolist()
        if size
    ]


def _write_delta(path: Path, before: Tensors, policy: Tensors) -> None:
    specs = {name: policy.specs[name] for name in sorted(policy.specs)}
    schema = _schema(specs)
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3))
    with pa.ipc.new_file(str(path), schema, options=options) as file:
        for name, spec in specs.items():
            old, new = _bits(before.read(name), spec), _bits(policy.read(name), spec)
            for block in _blocks(spec.numel):
                file.write(pa.record_batch([[part] for part in encode(old[block], new[block])], schema=schema))


def _schema(specs: Mapping[str, TensorSpec]) -> pa.Schema:
    """Return the schema of a delta, which describes the tensors in the order of their names."""
    described = {name: [dtype_name(specs[name].dtype), list(specs[name].shape)] for name in sorted(specs)}
    return _SCHEMA.with_metadata({_TENSORS: json.dumps(described)})


def _bits(tensor: Tensor, spec: TensorSpec) -> np.ndarray[Any, Any]:
    return np.frombuffer(raw_bytes(tensor.to(spec.dtype)), dtype=_UNSIGNED[spec.dtype.itemsize])


def _blocks(elements: int) -> Sequence[slice]:
    return [slice(start, start + BLOCK) for start in range(0, elements, BLOCK)]


def encode(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    """Return gaps between changed elements, and their changes, of two arrays of one unsigned type.

    A change is the difference of the bits as integers, which is small for neighbouring floating point numbers, its sign in the
    lowest bit (zigzag).
    """
    places = np.flatnonzero(before != after)
    gaps = np.diff(places, prepend=-1) - 1
    far = np.flatnonzero(gaps >= _FARTHEST)
    marks = np.insert((gaps % _FARTHEST).astype(np.uint8), np.repeat(far, gaps[far] // _FARTHEST), _FARTHEST)
    changes = after[places] - before[places]
    signs = changes >> (8 * changes.itemsize - 1)
    zigzag = (changes << 1) ^ np.negative(signs)
    return marks.tobytes(), zigzag.view(np.uint8).reshape(-1, zigzag.itemsize).T.tobytes()


def decode(values: np.ndarray[Any, Any], gaps: bytes, changes: bytes) -> None:
    """Apply to an array, in place, what `encode` returned. Raises ValueError or IndexError if it does not fit."""
    if len(gaps) > len(values):  # each mark stands for an element, or for 255
        raise ValueError("more gaps than elements")
    marks = np.frombuffer(gaps, dtype=np.uint8)
    places = np.cumsum(marks, dtype=np.int64)[marks != _FARTHEST]
    planes = np.frombuffer(changes, dtype=np.uint8).reshape(values.itemsize, -1)
    zigzag = np.ascontiguousarray(planes.T).view(values.dtype).reshape(-1)
    if len(zigzag) != len(places):
        raise ValueError("gaps and changes differ in number")
    values[places + np.arange(len(places))] += (zigzag >> 1) ^ np.negative(zigzag & 1)
