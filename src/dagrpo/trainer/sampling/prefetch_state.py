"""Saved batches of a state: sampled, but not trained on yet.

They come with the weights that have yet to sample others, and with the parts of attempts that were cut off. All are exact: the bits
that were written are read back. The table of rollouts (rollout/table.py), in contrast, is an output and rounds the engine's logprobs to
float32.
"""

import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from dagrpo.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.core.trajectory import GradedTrajectory, Prompt, TokenSample, Trajectory
from dagrpo.core.types import Completion, Score, ToolCall
from dagrpo.rollout.early_stop import Part, Parts
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.run import step_file
from dagrpo.trainer.sampling.prefetch import PendingBatches
from dagrpo.utils.manifest import FileEntry, entry_of
from dagrpo.utils.tables import read_parquet, write_parquet

FOLDER = "ahead"  # in the folder of a state
_SAMPLER = re.compile(r"sampler_([0-9]{5,})\.safetensors")
_PARTS = "cut_off.parquet"
_OF_STEP = b"step"  # metadata of a table
_EARLIER = ("earlier", pa.map_(pa.string(), pa.int32()))
_SUPPORT = ("support", pa.list_(pa.list_(pa.int32())))
_SAMPLE = pa.struct(
    [
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float64())),  # as the engine returned them
        ("weight_version", pa.string()),
        _EARLIER,
        _SUPPORT,
    ]
)
_PART = pa.schema(
    [
        ("place", pa.int32()),  # of the prompt, among those that were cut off
        ("sample_index", pa.int32()),
        ("seed", pa.int64()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("finish_reason", pa.string()),
        ("weight_version", pa.string()),
        ("cached_tokens", pa.int64()),
        _EARLIER,
        _SUPPORT,
    ]
)
_SCHEMA = pa.schema(
    [
        ("problem_index", pa.int64()),  # the row of the split
        ("samples", pa.list_(_SAMPLE)),
        ("teacher_logprobs", pa.list_(pa.float32())),
        ("trajectory", pa.string()),  # JSON: its other fields
        ("score", pa.string()),  # JSON
    ]
)
_PLAIN = (
    "step",
    "group_size",
    "several_turns",
    "zero_variance_filter",
    "partial",
    "staleness",
    "ahead_seconds",
)  # fields of a batch


def write(folder: Path, pending: PendingBatches) -> dict[str, FileEntry]:
    """Write batches, weights and parts below the folder of a state; return the files by their names there."""
    paths = []
    if pending.parts:
        paths.append(folder / FOLDER / _PARTS)
        rows = [
            {name: getattr(part.completion, name) for name in Completion.__slots__}
            | {"place": place, "sample_index": index, "seed": part.seed}
            for place, parts in pending.parts.items()
            for index, part in parts.items()
        ]
        write_parquet(paths[-1], pa.Table.from_pylist(rows, schema=_PART))
    for step, batch in pending.batches.items():
        paths.append(folder / FOLDER / step_file(step + 1))
        write_parquet(paths[-1], _table(batch))
    for finished, weights in pending.samplers.items():
        paths.append(folder / FOLDER / f"sampler_{finished:05d}.safetensors")
        write_safetensors(paths[-1], weights, {})
    return {str(path.relative_to(folder)): entry_of(path) for path in paths}


def read(folder: Path, prompts: Sequence[Prompt]) -> PendingBatches:
    """Read the batches, weights and parts of a state's folder, which may have none. `prompts` are the run's."""
    by_row = {prompt.index: prompt for prompt in prompts}
    tables = [read_parquet(path) for path in sorted((folder / FOLDER).glob("step_*.parquet"))]
    batches = [_batch(table, by_row) for table in tables]
    return PendingBatches(
        batches={batch.step: batch for batch in batches},
        samplers=dict(_samplers(folder / FOLDER)),
        parts=_parts(folder / FOLDER / _PARTS),
    )


def _parts(path: Path) -> Mapping[int, Parts]:
    parts: dict[int, dict[int, Part]] = {}
    for row in read_parquet(path).to_pylist() if path.exists() else ():
        completion = Completion(
            token_ids=tuple(row["token_ids"]),
            logprobs=tuple(row["logprobs"]),
            **{name: row[name] for name in ("finish_reason", "weight_version", "cached_tokens")},
            **_read_columns(row),
        )
        parts.setdefault(row["place"], {})[row["sample_index"]] = Part(seed=row["seed"], completion=completion)
    return parts


def _read_columns(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a part and a sample share, as they have them."""
    return {
        "earlier": tuple(stored["earlier"]),
        "support": tuple(array("i", ids) for ids in stored["support"]),
    }


def _samplers(folder: Path) -> Iterator[tuple[int, Tensors]]:
    """Yield (step, weights), read into memory, as the state may be removed during the run."""
    for path in sorted(folder.glob("*.safetensors")):
        match, file = _SAMPLER.fullmatch(path.name), SafetensorsFile(path)
        assert match is not None, "every file of a state was checked against its list"
        yield int(match[1]), StateTensors({name: file.read(name).clone() for name in file.names})


def _table(batch: Rollouts) -> pa.Table:
    parts = () if batch.teacher_logprobs is None else torch.split(batch.teacher_logprobs, batch.lengths)
    teacher = [part.tolist() for part in parts] or [[] for _ in batch.graded]
    rows = [_row(each, own) for each, own in zip(batch.graded, teacher, strict=True)]
    rows += [_row(each, []) for each in batch.discarded]
    metadata = {_OF_STEP: json.dumps(_of_step(batch))}
    return pa.Table.from_pylist(rows, schema=_SCHEMA).replace_schema_metadata(metadata)


def _of_step(batch: Rollouts) -> dict[str, Any]:
    """Return all JSON-serialisable data of the batch but the trajectories; mappings keep their order."""
    greedy = batch.greedy_rewards
    return {
        **{name: getattr(batch, name) for name in _PLAIN},
        "trajectories": len(batch.graded),
        "rewards": batch.rewards.tolist(),
        "components": {name: values.tolist() for name, values in batch.components.items()},
        "weights": dict(batch.weights),
        "greedy_rewards": None if greedy is None else greedy.tolist(),
        "has_teacher": batch.teacher_logprobs is not None,
        "functions": batch.functions,
        "used": batch.used,
        "sampling_metrics": dict(batch.sampling_metrics),
        **({"order": batch.order, "tasks": batch.tasks} if batch.tasks else {}),
    }


def _batch(table: pa.Table, prompts: Mapping[int, Prompt]) -> Rollouts:
    known, rows = json.loads(table.schema.metadata[_OF_STEP]), table.to_pylist()
    graded = tuple(_graded(row, prompts[row["problem_index"]]) for row in rows)
    inside, greedy = known["trajectories"], known["greedy_rewards"]
    teacher = [logprob for row in rows for logprob in row["teacher_logprobs"]]
    return Rollouts(
        **{name: known[name] for name in _PLAIN},
        graded=graded[:inside],
        rewards=torch.tensor(known["rewards"], dtype=torch.float32),
        components={name: torch.tensor(each, dtype=torch.float32) for name, each in known["components"].items()},
        weights=known["weights"],
        greedy_rewards=None if greedy is None else torch.tensor(greedy, dtype=torch.float32),
        teacher_logprobs=torch.tensor(teacher, dtype=torch.float32) if known["has_teacher"] else None,
        functions=tuple(known["functions"]),
        order=tuple(known.get("order", ())),
        tasks=tuple(known.get("tasks", ())),
        used=tuple(known["used"]),
        discarded=graded[inside:],
        sampling_metrics=known["sampling_metrics"],
    )


def _row(graded: GradedTrajectory, teacher_logprobs: list[float]) -> dict[str, Any]:
    trajectory = graded.trajectory
    return {
        "problem_index": trajectory.prompt.index,
        "samples": [
            {name: getattr(sample, name) for name in _SAMPLE.names} | {"loss_mask": [*map(bool, sample.loss_mask)]}
            for sample in trajectory.samples
        ],
        "teacher_logprobs": teacher_logprobs,
        "trajectory": json.dumps(_rest(trajectory)),
        "score": json.dumps(asdict(graded.score)),
    }


def _rest(trajectory: Trajectory) -> dict[str, Any]:
    names = [name for name in Trajectory.__slots__ if name not in ("prompt", "samples", "calls", "reported")]
    plain = {name: getattr(trajectory, name) for name in names}
    return plain | {"calls": [asdict(call) for call in trajectory.calls], "reported": dict(trajectory.reported)}


def _graded(row: Mapping[str, Any], prompt: Prompt) -> GradedTrajectory:
    rest = json.loads(row["trajectory"])
    rest |= {"calls": tuple(ToolCall(**call) for call in rest["calls"]), "messages": tuple(rest["messages"])}
    trajectory = Trajectory(prompt=prompt, samples=tuple(map(_sample, row["samples"])), **rest)
    return GradedTrajectory(trajectory=trajectory, score=Score(**json.loads(row["score"])))


def _sample(stored: Mapping[str, Any]) -> TokenSample:
    return TokenSample(
        token_ids=stored["token_ids"],
        loss_mask=stored["loss_mask"],
        logprobs=stored["logprobs"],
        weight_version=stored["weight_version"],
        **_read_columns(stored),
    )
