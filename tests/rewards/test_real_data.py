"""The ground truths of the public data sets: all can be compared with, and every real solution is graded right."""

import json
from pathlib import Path

import pytest

from dagrpo.rewards.grading import Grader
from dagrpo.utils.tables import read_parquet
from dagrpo_answers.verifiers.gsm8k import extract


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_solution_of_gsm8k_is_right_by_its_own_ground_truth(data_folder: Path, grader: Grader) -> None:
    solutions = [row["answer"] for name in ("train", "test") for row in _rows(data_folder / f"gsm8k/{name}.jsonl")]
    truths = [solution.rpartition("####")[2].strip() for solution in solutions]
    rows = 7473 + 1319
    assert len(truths) == rows
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
    truths = [row["ground_truth"] for row in read_parquet(path).column("reward_model").to_pylist()]
    assert len(truths) == 17917
    texts = [f"So it is.\n**Answer:** ${int(truth):,}$." for truth in truths]
    judgements = grader.judge(texts, truths, ["math_dapo"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"right"}
    wrong = [f"Answer: {int(truth) + 1}" for truth in truths]
    judgements = grader.judge(wrong, truths, ["math_dapo"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"wrong"}


def test_every_ground_truth_of_geometry_3k_can_be_compared_with(data_folder: Path, grader: Grader) -> None:
    truths = [row["answer"] for name in ("train", "val", "test") for row in _rows(data_folder / f"geo3k/{name}.jsonl")]
    assert len(truths) == 300
    texts = [f"<think>so</think> \\boxed{{{truth}}}" for truth in truths]
    judgements = grader.judge(texts, truths, ["geo3k"] * len(truths), "strict")
    assert {judgement.verdict for judgement in judgements} == {"right"}
