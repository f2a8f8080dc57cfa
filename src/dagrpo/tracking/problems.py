"""Problems and prompt form of an evaluation, in plain JSON.

A sync converts them to MLflow's evaluation data set and prompt (evaluation_sets.py, prompts.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dagrpo.core.escape import visible

LONGEST = 10_000  # characters of one text
MOST_PROBLEMS = 2000  # MLflow takes some milliseconds for each
COLUMNS = ("prompt", "extra_info", "reward_model", "tools", "images")
QUESTION = "{{question}}"  # a variable, as MLflow writes one in a prompt
Row = Mapping[str, Any]


def problems_of(split: Path) -> dict[str, Any]:
    """Return a file's problems: the first ones and their total number, the prompt form, the tools. The file has the row contract.

    prompt: chat messages; [] if the rows have no common form.
    """
    columns = [name for name in COLUMNS if name in pq.read_schema(split).names]
    table = pq.read_table(split, columns=columns)
    rows = table.slice(0, MOST_PROBLEMS).to_pylist()
    return {
        "of": table.num_rows,
        "records": [record_of(row) for row in rows],
        "prompt": prompt_form(rows),
        "tools": sorted({tool for row in rows for tool in row.get("tools", ())}),
    }


def record_of(row: Row) -> dict[str, Any]:
    """Return one problem. Pictures are named by their sha256, since problems may differ in them alone."""
    pictures = [hashlib.sha256(picture["bytes"]).hexdigest() for picture in row.get("images", ())]
    question = {"question": visible(row["extra_info"]["question"], LONGEST)}
    return {
        "inputs": question | ({"pictures": pictures} if pictures else {}),
        "expectations": {"ground_truth": visible(row["reward_model"]["ground_truth"], LONGEST)},
    }


def prompt_form(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the common chat messages with `{{question}}` in place of each problem's; [] if the rows have no common form."""
    forms = {tuple(_form(row)) for row in rows}
    if len(forms) != 1:
        return []
    (form,) = forms
    return [{"role": role, "content": content} for role, content in form]


def _form(row: Row) -> list[tuple[str, str]]:
    question = row["extra_info"]["question"]
    return [
        (message["role"], visible(message["content"].replace(question, QUESTION, 1) if question else "", LONGEST))
        for message in row["prompt"]
    ]
