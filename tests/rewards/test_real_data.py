"""The ground truths of the public data sets: all can be compared with, and every real solution is graded right."""

import json
from pathlib import Path

import pytest

from dagrpo.rewards.grading import Grader
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.utils.tables import read_parquet
from dagrpo_answers.verifiers.gsm8k import extract


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        pytest.skip(f"{path} is missing: set DAGRPO_DATA to a folder with copies")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_every_solution_of_gsm8k_is_right_by_its_own_ground_truth(
    split: str, rows: int, data_folder: Path, grader: Grader
) -> None:
    solutions = [row["answer"] for row in _rows(data_folder / f"gsm8k/{split}.jsonl")]
    truths = [solution.rpartition("####")[2].strip() for solution in solutions]
    assert len(truths) == rows
    for truth in truths:
        get_verifier("gsm8k").check(truth)
    for extractor in ("strict", "flexible", "exact"):
        judgements = grader.judge(solutions, truths, ["gsm8k"] * rows, extractor)
        assert {judgement.verdict for judgement in judgements} == {"right"}
    assert all(extract(solution, "strict") == extract(solution, "flexible") for solution in solutions)


@pytest.mark.parametrize("verifier", ["gsm8k", "math"])
def test_the_flexible_answer_of_a_solution_without_its_mark_is_the_last_result(
    verifier: str, data_folder: Path, grader: Grader
) -> None:
    answers = [row["answer"].rpartition("\n####") for row in _rows(data_folder / "gsm8k/test.jsonl")]
    texts, truths = [reasoning for reasoning, _, _ in answers], [truth.strip() for _, _, truth in answers]
    judgements = grader.judge(texts, truths, [verifier] * len(texts), "flexible")
    assert sum(judgement.verdict == "right" for judgement in judgements) > 0.95 * len(texts)


def test_every_ground_truth_of_dapo_can_be_compared_with_and_is_right_by_itself(
    data_folder: Path, grader: Grader
) -> None:
    path = data_folder / "dapo/dapo_math_17k.parquet"
    if not path.exists():
        pytest.skip(f"{path} is missing: set DAGRPO_DATA to a folder with copies")
    truths = [row["ground_truth"] for row in read_parquet(path).column("reward_model").to_pylist()]
    assert len(truths) == 17917
    for truth in set(truths):
        get_verifier("math_dapo").check(truth)
    texts = [f"So it is.\n**Answer:** ${int(truth):,}$." for truth in truths]
    judgements = grader.judge(texts, truths, ["math_dapo"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"right"}
    wrong = [f"Answer: {int(truth) + 1}" for truth in truths]
    judgements = grader.judge(wrong, truths, ["math_dapo"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"wrong"}


def test_every_ground_truth_of_geometry_3k_can_be_compared_with(data_folder: Path, grader: Grader) -> None:
    truths = [row["answer"] for name in ("train", "val", "test") for row in _rows(data_folder / f"geo3k/{name}.jsonl")]
    assert len(truths) == 300
    for truth in truths:
        get_verifier("geo3k").check(truth)
    texts = [f"<think>so</think> \\boxed{{{truth}}}" for truth in truths]
    judgements = grader.judge(texts, truths, ["geo3k"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"right"}


@pytest.mark.parametrize("year", [2024, 2025])
def test_every_ground_truth_of_aime_can_be_compared_with(year: int, data_folder: Path) -> None:
    for row in _rows(data_folder / f"aime/aime_{year}.jsonl"):
        get_verifier("math_dapo").check(str(row["answer"]))
