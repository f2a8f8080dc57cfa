"""The Arrow schema of prepared rows, a superset of verl's.

No nulls but an unknown pass rate, no schema inferred from the data: the same rows always give the same columns.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagrpo.core.types import Row

SINGLE_TURN_AGENT = "single_turn_agent"
TOOL_AGENT = "tool_agent"  # verl runs its tool loop for rows that say so, and for no others
REWARD_STYLE = "rule"


def _text(name: str) -> pa.Field:
    return pa.field(name, pa.string(), nullable=False)


_MESSAGE = pa.struct([_text("role"), _text("content")])
_REWARD_MODEL = pa.struct([_text("style"), _text("ground_truth")])
_EXTRA_INFO = pa.struct(
    [
        _text("split"),
        pa.field("index", pa.int64(), nullable=False),
        _text("answer"),
        _text("question"),
        pa.field("need_tools_kwargs", pa.bool_(), nullable=False),
    ]
)
_IMAGE = pa.struct([pa.field("bytes", pa.binary(), nullable=False), _text("path")])


def _list_of(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("element", kind, nullable=False)), nullable=False)


SCHEMA = pa.schema(
    [
        _text("data_source"),
        _text("agent_name"),
        _list_of("prompt", _MESSAGE),
        _list_of("images", _IMAGE),
        _text("ability"),
        pa.field("reward_model", _REWARD_MODEL, nullable=False),
        pa.field("extra_info", _EXTRA_INFO, nullable=False),
        _text("task"),
        _text("verifier"),
        _list_of("tools", pa.string()),
        _text("interaction"),  # empty: none
        pa.field("pass_rate", pa.float64()),  # null: not known
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        _text("demonstration"),  # JSON; []: none
    ]
)


def to_table(rows: Sequence[Row]) -> pa.Table:
    """Return the rows as a table of the schema, in their order."""
    return pa.Table.from_pylist([_record(row) for row in rows], schema=SCHEMA)


def from_table(table: pa.Table) -> list[Row]:
    """Return the rows of a table that `to_table` returned, in their order."""
    return [_row(record) for record in table.to_pylist()]


def _record(row: Row) -> dict[str, Any]:
    return {
        "data_source": row.data_source,
        "agent_name": TOOL_AGENT if row.tools or row.interaction else SINGLE_TURN_AGENT,
        "prompt": list(row.prompt),
        "images": [{"bytes": image, "path": ""} for image in row.images],
        "ability": row.ability,
        "reward_model": {"style": REWARD_STYLE, "ground_truth": row.ground_truth},
        "extra_info": {
            "split": row.split,
            "index": row.index,
            "answer": row.answer,
            "question": row.question,
            "need_tools_kwargs": bool(row.tools),
        },
        "task": row.task,
        "verifier": row.verifier,
        "tools": list(row.tools),
        "interaction": row.interaction,
        "pass_rate": row.pass_rate,
        "prompt_tokens": row.prompt_tokens,
        # Messages with calls have no schema that a column could have: a call's arguments are as free as its tool likes.
        "demonstration": json.dumps([dict(message) for message in row.demonstration], ensure_ascii=False),
    }


def _row(record: dict[str, Any]) -> Row:
    extra = record["extra_info"]
    return Row(
        task=record["task"],
        split=extra["split"],
        index=extra["index"],
        prompt=tuple(record["prompt"]),
        question=extra["question"],
        answer=extra["answer"],
        ground_truth=record["reward_model"]["ground_truth"],
        data_source=record["data_source"],
        ability=record["ability"],
        verifier=record["verifier"],
        images=tuple(image["bytes"] for image in record["images"]),
        tools=tuple(record["tools"]),
        interaction=record["interaction"],
        pass_rate=record["pass_rate"],
        prompt_tokens=record["prompt_tokens"],
        demonstration=tuple(json.loads(record["demonstration"])),
    )
