"""The parquet tables of evaluation: what `sample` writes and `score` reads, what `score` writes and `report` reads."""

from pathlib import Path

import pyarrow as pa

from dagrpo.errors import UserError
from dagrpo.files import read_parquet

GREEDY = -1  # sample_index of the one completion decoded at temperature 0


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


COMPLETIONS = pa.schema(
    [
        _required("task", pa.string()),
        _required("problem_index", pa.int64()),  # row of test.parquet
        _required("sample_index", pa.int32()),  # GREEDY, or 0, 1, ... for sampled ones
        _required("prompt", pa.string()),  # as rendered by the chat template
        _required("completion", pa.string()),
        _required("completion_ids", pa.list_(pa.int32())),
        _required("logprobs", pa.list_(pa.float32())),
        _required("finish_reason", pa.string()),  # "stop" or "length"
        _required("ground_truth", pa.string()),
        _required("verifier", pa.string()),
        _required("question", pa.string()),
        _required("sampling_seed", pa.int64()),
    ]
)

SCORES = pa.schema(
    [
        _required("task", pa.string()),
        _required("problem_index", pa.int64()),
        _required("sample_index", pa.int32()),
        pa.field("extracted", pa.string()),  # null: no answer to read
        _required("verdict", pa.string()),  # right, wrong, missing or unverifiable
        _required("correct", pa.bool_()),  # verdict is right
        _required("truncated", pa.bool_()),
        _required("completion_tokens", pa.int32()),
        _required("completion", pa.string()),
        _required("question", pa.string()),
        _required("ground_truth", pa.string()),
    ]
)


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a table and check it against its schema; UserError names the file and the column or row that is wrong."""
    table = read_parquet(path)
    if table.num_rows == 0:
        raise UserError(f"{path} has no rows: run the stage that makes it again.")
    for field in schema:
        if field.name not in table.column_names:
            raise UserError(f"{path}: column `{field.name}` is missing: run the stage that makes it again.")
        column = table.column(field.name)
        if column.type != field.type:
            raise UserError(
                f"{path}: column `{field.name}` is {column.type}, not {field.type}: run the stage that makes it again."
            )
        if not field.nullable and column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise UserError(f"{path}: row {row}: `{field.name}` is null: run the stage that makes it again.")
    return table.select(schema.names)
