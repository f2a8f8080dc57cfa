"""Hand-made mirrors to prepare from, and what was prepared, read back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.datasets.dapo import CLOSING, OPENING
from dagrpo.data.schema import from_table
from dagrpo.utils.tables import read_parquet, write_parquet

FILES = ("card.json", "dropped.parquet", "passages.parquet", "test.parquet", "train.parquet", "validation.parquet")


def read_split(folder: Path, split: str) -> list[Row]:
    """The problems of a prepared split."""
    path = folder / f"{split}.parquet"
    return from_table(read_parquet(path))


def read_dropped(folder: Path) -> list[dict[str, Any]]:
    """The rows of dropped.parquet."""
    rows: list[dict[str, Any]] = read_parquet(folder / "dropped.parquet").to_pylist()
    return rows


def gsm8k_mirror(mirror: Path, train: Sequence[str], test: Sequence[str] = ("2 + 2",)) -> Path:
    """A mirror with these questions; every answer is 4."""
    (mirror / "gsm8k").mkdir(parents=True, exist_ok=True)
    for split, questions in (("train", train), ("test", test)):
        lines = [json.dumps({"question": question, "answer": "It is\n#### 4"}) for question in questions]
        (mirror / f"gsm8k/{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return mirror


def dapo_mirror(mirror: Path, rows: Sequence[tuple[str, str]], copies: int = 1) -> Path:
    """A mirror with these questions and answers, each so many times."""
    found = [
        {
            "prompt": [{"role": "user", "content": f"{OPENING}{question}{CLOSING}"}],
            "reward_model": {"ground_truth": answer},
            "extra_info": {"index": str(number)},
        }
        for number, (question, answer) in enumerate(rows)
    ]
    write_parquet(mirror / "dapo/dapo_math_17k.parquet", pa.Table.from_pylist(found * copies))
    return mirror


def limited(mirror: Path, **params: Any) -> Data:
    """Parameters under which a part of a data set is enough."""
    return Data(mirror=str(mirror), **{"max_train": 1000, "max_test": 1000} | params)
