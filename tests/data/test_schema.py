"""The row contract: what is written can be read, by this project and by verl."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.types import Row
from dagrpo.data.schema import SCHEMA, from_table, to_table
from dagrpo.utils.tables import read_parquet, write_parquet

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


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: bool(text.strip()))


@given(TEXT, TEXT, st.integers(0, 2**63 - 1))
def test_any_text_survives_the_table(question: str, answer: str, index: int) -> None:
    prompt = ({"role": "user", "content": question},)
    task_row = replace(EXAMPLE, index=index, question=question, answer=answer, prompt=prompt)
    assert from_table(to_table([task_row])) == [task_row]


def test_the_columns_are_those_of_verl_and_the_task() -> None:
    assert SCHEMA.names == [
        *("data_source", "agent_name", "prompt", "images", "ability", "reward_model", "extra_info"),  # verl's
        *("task", "verifier", "tools", "interaction", "pass_rate", "prompt_tokens", "demonstration"),
    ]
    extra = ["split", "index", "answer", "question", "need_tools_kwargs"]
    assert [field.name for field in SCHEMA.field("extra_info").type] == extra
    assert [field.name for field in SCHEMA if field.nullable] == ["pass_rate"]


def test_rows_survive_a_file_and_so_does_a_split_without_rows(tmp_path: Path) -> None:
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
    for rows in ([whole, replace(EXAMPLE, index=8, question="\u2028 and \U0001f986", prompt=EXAMPLE.prompt[:1])], []):
        write_parquet(tmp_path / "test.parquet", to_table(rows))
        table = read_parquet(tmp_path / "test.parquet")
        assert table.schema.equals(SCHEMA)
        assert from_table(table) == rows


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
