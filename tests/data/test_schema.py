"""The row contract: what is written can be read, by this project and by verl."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.types import Row
from dagrpo.data.schema import SCHEMA, from_table, to_table
from dagrpo.utils.tables import read_parquet, write_parquet

FILE = Path("data/gsm8k/test.parquet")
EXAMPLE = Row(
    task="gsm8k",
    split="test",
    index=7,
    prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many eggs?"}),
    question="How many eggs?",
    answer="9 * 2 = 18\n#### 18",
    ground_truth="18",
    data_source="openai/gsm8k",
)

CALL = {"name": "calc_geo3k_reward", "arguments": {"answer": "\\frac{1}{2}"}}


def _table(column: str, value: object) -> pa.Table:
    """Two rows, the second with another value in one column."""
    rows = to_table([EXAMPLE, EXAMPLE]).to_pylist()
    rows[1][column] = value
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_examples_survive_a_file(tmp_path: Path) -> None:
    task_rows = [EXAMPLE, replace(EXAMPLE, index=8, question="\u2028 and \U0001f986", prompt=EXAMPLE.prompt[:1])]
    write_parquet(tmp_path / "test.parquet", to_table(task_rows))
    table = read_parquet(tmp_path / "test.parquet")
    assert table.schema.equals(SCHEMA)
    assert from_table(table, tmp_path / "test.parquet") == task_rows


def test_a_split_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", to_table([]))
    table = read_parquet(tmp_path / "train.parquet")
    assert table.schema.equals(SCHEMA)
    assert from_table(table, tmp_path / "train.parquet") == []


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: bool(text.strip()))


@given(TEXT, TEXT, st.integers(0, 2**63 - 1))
def test_any_text_survives_the_table(question: str, answer: str, index: int) -> None:
    prompt = ({"role": "user", "content": question},)
    task_row = replace(EXAMPLE, index=index, question=question, answer=answer, prompt=prompt)
    assert from_table(to_table([task_row]), FILE) == [task_row]


def test_no_column_but_the_pass_rate_may_hold_a_null() -> None:
    assert [field.name for field in SCHEMA if field.nullable] == ["pass_rate"]


def test_the_columns_are_those_of_verl_and_the_task() -> None:
    of_verl = ["data_source", "agent_name", "prompt", "images", "ability", "reward_model", "extra_info"]
    assert SCHEMA.names[:7] == of_verl
    assert SCHEMA.names[7:] == [
        "task",
        "verifier",
        "tools",
        "interaction",
        "pass_rate",
        "prompt_tokens",
        "demonstration",
    ]
    extra = ["split", "index", "answer", "question", "need_tools_kwargs"]
    assert [field.name for field in SCHEMA.field("extra_info").type] == extra


def test_a_row_with_tools_pictures_and_a_pass_rate_survives_a_file(tmp_path: Path) -> None:
    whole = replace(
        EXAMPLE,
        verifier="geo3k",
        images=(b"first", b"second"),
        tools=("answer_check",),
        interaction="gsm8k_feedback",
        pass_rate=0.25,
        prompt_tokens=77,
        demonstration=(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
            {"role": "tool", "content": "\u20ac 1"},
            {"role": "assistant", "content": "#### 1"},
        ),
    )
    write_parquet(tmp_path / "test.parquet", to_table([whole]))
    assert from_table(read_parquet(tmp_path / "test.parquet"), FILE) == [whole]


@pytest.mark.parametrize(
    ("changes", "agent", "needs_tools"),
    [
        ({}, "single_turn_agent", False),
        ({"tools": ("code_interpreter",)}, "tool_agent", True),
        ({"interaction": "gsm8k_feedback"}, "tool_agent", False),
    ],
)
def test_verl_is_told_which_of_its_loops_runs_a_row(changes: dict[str, Any], agent: str, needs_tools: bool) -> None:
    (row,) = to_table([replace(EXAMPLE, **changes)]).to_pylist()
    assert row["agent_name"] == agent
    assert row["extra_info"]["need_tools_kwargs"] is needs_tools


def test_pandas_reads_a_row_as_verl_does(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test.parquet", to_table([EXAMPLE]))
    row = pd.read_parquet(tmp_path / "test.parquet").iloc[0]
    assert list(row["prompt"]) == list(EXAMPLE.prompt)
    assert row["reward_model"] == {"style": "rule", "ground_truth": "18"}
    assert row["extra_info"]["index"] == 7
    assert row["agent_name"] == "single_turn_agent"


def test_datasets_reads_a_row_as_verl_does(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test.parquet", to_table([EXAMPLE]))
    files = str(tmp_path / "test.parquet")
    row = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"][0]
    assert row["prompt"] == list(EXAMPLE.prompt)
    assert row["reward_model"]["ground_truth"] == "18"
    assert row["data_source"] == "openai/gsm8k"


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"test\.parquet has no column `ability`"):
        from_table(to_table([EXAMPLE]).drop_columns(["ability"]), FILE)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"test\.parquet has an unknown column `pictures`"):
        from_table(to_table([EXAMPLE]).append_column("pictures", pa.array(["x"])), FILE)


def test_a_column_of_another_type_is_named() -> None:
    table = to_table([EXAMPLE])
    number = pa.field("task", pa.int64(), nullable=False)
    with pytest.raises(ValueError, match=r"column `task` is .*int64.* instead of .*string"):
        from_table(table.set_column(table.schema.get_field_index("task"), number, [[1]]), FILE)


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("reward_model", {"style": "rule", "ground_truth": " "}, "row 1, field `reward_model.ground_truth` is empty"),
        ("prompt", [], "row 1, field `prompt` holds no message"),
        ("prompt", [{"role": "robot", "content": "Hi"}], "row 1, field `prompt.role` is 'robot'"),
        ("prompt", [{"role": "user", "content": ""}], "row 1, field `prompt.content` is empty"),
        ("task", "", "row 1, field `task` is empty"),
        ("demonstration", "[", "row 1, field `demonstration` is not JSON"),
        ("demonstration", "[1]", "row 1, field `demonstration` is not a list of messages of assistant, tool, user"),
        ("demonstration", '[{"role": "assistant"}]', "row 1, field `demonstration` is not a list of messages"),
        (
            "demonstration",
            '[{"role": "user", "content": "Go on."}]',
            "row 1, field `demonstration` has the roles user: it",
        ),
    ],
)
def test_a_bad_value_is_named_by_file_row_and_field(column: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"data/gsm8k/test\.parquet, {sentence}"):
        from_table(_table(column, value), FILE)


def test_a_null_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid):
        pq.write_table(_table("task", None), tmp_path / "test.parquet")
