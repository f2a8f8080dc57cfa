"""Hand-made problems, and models whose tokenizer counts their prompts."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from dagrpo.core.types import Row
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.task import TaskRows
from dagrpo.models.tokenizer import character_tokenizer


def task_row(
    question: str,
    ground_truth: str = "1",
    *,
    split: str = "train",
    index: int = 0,
    verifier: str = "gsm8k",
    images: tuple[bytes, ...] = (),
    pass_rate: float | None = None,
    system: str = "",
    tools: tuple[str, ...] = (),
) -> Row:
    """A problem of the task `sums` whose prompt is its question."""
    opening = ({"role": "system", "content": system},) if system else ()
    return Row(
        task="sums",
        split=split,
        index=index,
        prompt=(*opening, {"role": "user", "content": question}),
        question=question,
        answer=f"#### {ground_truth}",
        ground_truth=ground_truth,
        data_source="sums",
        verifier=verifier,
        images=images,
        pass_rate=pass_rate,
        tools=tools,
    )


def task_rows(questions: Sequence[str | tuple[str, str]], split: str = "train") -> list[Row]:
    """Problems with indices from 0: questions, or questions with their ground truths."""
    pairs = [question if isinstance(question, tuple) else (question, "1") for question in questions]
    return [task_row(question, truth, split=split, index=index) for index, (question, truth) in enumerate(pairs)]


def sieve(train: Sequence[str | tuple[str, str]], test: Sequence[str | tuple[str, str]] = ()) -> Sieve:
    """A sieve with such problems in train and test."""
    return Sieve({"train": task_rows(train), "test": task_rows(test, "test")})


def left(sieve: Sieve, split: str = "train") -> list[int]:
    """The indices of the problems that are left."""
    return [problem.index for problem in sieve.splits[split]]


def gone(sieve: Sieve) -> list[tuple[str, int, str, str]]:
    """What was dropped: split, index, reason, detail."""
    return [(item.row.split, item.row.index, item.reason, item.detail) for item in sieve.dropped]


def problems(
    splits: Mapping[str, Sequence[Row]], *, copies: Mapping[str, int] | None = None, held_out: bool = False
) -> TaskRows:
    """What a task `sums` loads, with so many exact copies read besides."""
    read = {split: len(found) + (copies or {}).get(split, 0) for split, found in splits.items()}
    return TaskRows(
        splits=splits,
        source="sums",
        origin="mirror",
        revision=None,
        files={"sums/train.jsonl": "0" * 64},
        expected={split: len(found) for split, found in splits.items()},
        read=read,
        held_out=held_out,
    )


def character_model(folder: Path) -> Path:
    """A model folder with the tokenizer of fresh models: `a` is `<|user|>a<|end|><|assistant|>`, 4 tokens."""
    character_tokenizer(256).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return folder


def qwen3_model(data_folder: Path, folder: Path) -> Path:
    """A model folder with the real tokenizer of Qwen3."""
    shutil.copytree(data_folder / "qwen3_tokenizer", folder, copy_function=shutil.copyfile)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "transformers_version": "4.51.0"}))
    return folder
