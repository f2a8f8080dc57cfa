"""Digests of a run's steps as records and as a table.

Imports no torch. digests.py computes them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from dagrpo.rollout.table import read_table, required
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.runtime import Layout, Reduction

FILE = "digests.parquet"  # beside the rollouts of the steps
WEIGHTS = "weights"
GRADIENT = "gradient"
NOT_RECORDED = "none"  # the kind of the only row of a step between two of training.digests_every
TensorDigests = Mapping[str, str]  # in hex, of each tensor's bytes, by its name in the trainer
# sha256: 64 digits, hashed on the CPU. gpu_tensor_hash: 16 digits, hashed where the tensor is; SGLang's function of that name.
Hash = Literal["sha256", "gpu_tensor_hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Conditions, beside parameters and code, that a step's rounding depends on. Digests are comparable if these are equal."""

    processes: int
    copies: int  # of the policy, each sharded over as many processes
    threads: int  # of each process
    micro_batch_size: int
    micro_batch_tokens: int  # 0: any number
    micro_batch_patches: int  # 0: any number
    head_chunk_tokens: int  # 0: all at once
    layout: Layout
    share_prompts: bool
    reduce_gradients: Reduction
    compiled: bool  # whether torch compiled the layers
    device: str  # "cpu", or the name of the GPU
    hashed_by: Hash  # how the digests follow from the tensors

    @property
    def budget(self) -> Budget:
        """Return the limits of the step's micro-batches."""
        return Budget(
            sequences=self.micro_batch_size,
            tokens=self.micro_batch_tokens or None,
            patches=self.micro_batch_patches or None,
            head_chunk_tokens=self.head_chunk_tokens or None,
            layout=self.layout,
            share_prompts=self.share_prompts,
            reduce_gradients=self.reduce_gradients,
            compiled=self.compiled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDigests:
    """Digests that one step computed.

    A mini-batch from which nothing is learned has no gradient; a step that training.digests_every leaves out has neither
    gradients nor weights.
    """

    computed: Computed
    gradients: tuple[TensorDigests, ...]  # [updates], before clipping
    weights: TensorDigests  # after the last update

    @property
    def are_recorded(self) -> bool:
        """Return True if there are digests to compare."""
        return bool(self.weights)

    def parts(self) -> Iterator[tuple[str, int, TensorDigests]]:
        """Yield (kind, 1-based update, digests) in the order of computation."""
        for update, gradient in enumerate(self.gradients, start=1):
            yield GRADIENT, update, gradient
        yield WEIGHTS, len(self.gradients), self.weights

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "StepDigests":
        """Build the digests from a value that `asdict` has produced."""
        return cls(
            computed=Computed(**value["computed"]), gradients=tuple(value["gradients"]), weights=value["weights"]
        )


def joint_digest(digests: TensorDigests) -> str:
    """Return one sha256 for all tensors: of lines with digest and name, in the order of the names."""
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


_TYPES: Mapping[Any, pa.DataType] = {int: pa.int32(), bool: pa.bool_()}  # of the other fields: a string
SCHEMA = pa.schema(
    [
        required("step", pa.int32()),  # from 1
        *(required(each.name, _TYPES.get(each.type, pa.string())) for each in fields(Computed)),
        # gradient or weights; none: neither was recorded, and the rest of the row is empty
        required("kind", pa.string()),
        required("update", pa.int32()),  # of the step, from 1: after it, for weights
        required("tensor", pa.string()),
        required("digest", pa.string()),
    ]
)


def digest_table(steps: Mapping[int, StepDigests]) -> pa.Table:
    """Return a table with one row per tensor (gradient or weights) and step, and one per step without digests; columns as in SCHEMA."""
    rows = [
        (step, *astuple(digests.computed), *row) for step, digests in sorted(steps.items()) for row in _rows(digests)
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def _rows(digests: StepDigests) -> Iterator[tuple[str, int, str, str]]:
    if not digests.are_recorded:
        yield NOT_RECORDED, 0, "", ""
        return
    for kind, update, part in digests.parts():
        yield from ((kind, update, tensor, digest) for tensor, digest in sorted(part.items()))


def read_digests(path: Path) -> dict[int, StepDigests]:
    """Return the digests of each step. Raises UserError if the file was not written by the stage train."""
    rows = read_table(path, SCHEMA).to_pylist()
    return {step: _of_rows(list(own)) for step, own in groupby(rows, key=itemgetter("step"))}


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> StepDigests:
    computed = Computed(**{field.name: rows[0][field.name] for field in fields(Computed)})
    if [row["kind"] for row in rows] == [NOT_RECORDED]:
        return StepDigests(computed=computed, gradients=(), weights={})
    parts = {
        key: {row["tensor"]: row["digest"] for row in own}
        for key, own in groupby(rows, key=itemgetter("kind", "update"))
    }
    weights = parts.pop((WEIGHTS, len(parts) - 1))
    return StepDigests(computed=computed, gradients=tuple(parts.values()), weights=weights)
