"""Hand-made mirrors to prepare from, and what was prepared, read back."""

import json
from collections.abc import Mapping, Sequence
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


def mirror_of(folder: Path, files: Mapping[str, bytes | Sequence[Mapping[str, Any]]]) -> Data:
    """Parameters of a mirror with these files, their rows as JSONL or Parquet; a part of the data set is enough."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif path.suffix == ".parquet":
            write_parquet(path, pa.Table.from_pylist([dict(row) for row in content]))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return Data(mirror=str(folder), max_train=9, max_test=9)


def gsm8k_mirror(mirror: Path, train: Sequence[str], test: Sequence[str] = ("2 + 2",)) -> Path:
    """A mirror with these questions; every answer is 4."""
    splits = {"train": train, "test": test}
    answer = "It is\n#### 4"
    mirror_of(
        mirror,
        {f"gsm8k/{split}.jsonl": [{"question": q, "answer": answer} for q in splits[split]] for split in splits},
    )
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
