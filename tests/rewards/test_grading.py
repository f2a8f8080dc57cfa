"""Judging batches: one score for each text, in order, however it is computed; ground truths of the public data sets."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dagrpo.core.types import Score
from dagrpo.evaluation.statistics import majority_correct
from dagrpo.rewards import grading, unit_tests
from dagrpo.rewards.grading import Grader, worker_count
from dagrpo.utils.tables import read_parquet
from dagrpo_answers.verifier import Extractor, Verdict
from dagrpo_answers.verifiers.gsm8k import extract

# text, ground truth, verifier, answer, verdict
BATCH: list[tuple[str, str, str, str | None, Verdict]] = [
    ("#### 18", "18", "gsm8k", "18", "right"),
    ("#### $1,000", "1000.0", "gsm8k", "1000", "right"),
    ("#### 17", "18", "gsm8k", "17", "wrong"),
    ("It is 18", "18", "gsm8k", None, "missing"),
    ("Answer: 2^{10}", "1024", "math_dapo", "2^{10}", "right"),
    ("Answer: 2^{10}", "1025", "math_dapo", "2^{10}", "wrong"),
    ("Answer: 9^{9^{9}}", "1025", "math_dapo", "9^{9^{9}}", "unverifiable"),
    ("\\boxed{\\frac{2}{4}}", "\\frac12", "math", "\\frac{2}{4}", "right"),
    ("\\boxed{\\sqrt{44}}", "2 \\sqrt { 11 }", "geo3k", "\\sqrt{44}", "right"),
    ("\\boxed{\\dfrac{1}{2}}", "\\frac{1}{2}", "math", "\\dfrac{1}{2}", "right"),
    ("<answer>paris</answer>", '["Paris"]', "exact_match", "paris", "right"),
    ("<answer>2 * 3</answer>", '{"numbers": [2, 3], "target": 6}', "countdown", "2 * 3", "right"),
]


def judge(grader: Grader, batch: Sequence[tuple[str, str, str, str | None, Verdict]]) -> list[Score]:
    texts, truths, verifiers = ([row[column] or "" for row in batch] for column in range(3))
    return grader.judge(texts, truths, verifiers, "strict")


def expected(batch: Sequence[tuple[str, str, str, str | None, Verdict]]) -> list[Score]:
    return [Score(extracted=answer, verdict=verdict, verifier=verifier) for _, _, verifier, answer, verdict in batch]


def test_a_batch_of_all_kinds_is_judged_in_order() -> None:
    with Grader(verify_seconds=1.0) as grader:
        assert judge(grader, BATCH) == expected(BATCH)
        assert judge(grader, BATCH[::-1]) == expected(BATCH)[::-1]


def test_an_event_loop_is_not_blocked_and_gets_the_same_judgements() -> None:
    async def judge_all(grader: Grader) -> list[list[Score]]:
        return await asyncio.gather(*(asyncio.to_thread(judge, grader, BATCH[:6]) for _ in range(4)))

    with Grader(verify_seconds=10.0, processes=2) as grader:
        assert asyncio.run(judge_all(grader)) == [expected(BATCH[:6])] * 4


@pytest.mark.parametrize(("extractor", "verdict"), [("strict", "right"), ("exact", "wrong")])
def test_the_exact_box_of_dapo_is_compared_letter_by_letter(
    extractor: Extractor, verdict: Verdict, grader: Grader
) -> None:
    assert grader.judge(["Answer: \\boxed{34.0}"], ["34"], ["math_dapo"], extractor)[0].verdict == verdict
    assert grader.judge(["Answer: \\boxed{34}"], ["34"], ["math_dapo"], extractor)[0].verdict == "right"


@pytest.mark.parametrize(
    ("text", "truth", "verifier"),
    [("#### 18", "eighteen", "gsm8k"), ("\\boxed{3}", "\\frac{", "math"), ("<answer>3</answer>", "3", "exact_match")],
)
def test_a_ground_truth_that_is_none_is_an_error_that_names_its_row(
    text: str, truth: str, verifier: str, grader: Grader
) -> None:
    with pytest.raises(ValueError, match=r"^row 1: [^\n]*\.$"):
        grader.judge(["#### 18", text], ["18", truth], ["gsm8k", verifier], "strict")


def test_attempts_whose_worth_is_reported_vote_with_their_verdicts(grader: Grader) -> None:
    reports: list[dict[str, float]] = [{"score": 12.0}, {"score": 4.0}, {"score": 0.0}, {}]
    judged = grader.judge([""] * 4, [""] * 4, ["reported"] * 4, "strict", reports)
    assert [(each.extracted, each.verdict) for each in judged] == [
        ("right", "right"),
        ("right", "right"),
        ("wrong", "wrong"),
        (None, "missing"),
    ]
    assert majority_correct([each.extracted for each in judged], [each.verdict == "right" for each in judged]) == 1.0


@pytest.mark.parametrize(("cores", "gibibytes", "count"), [(4, 64, 4), (192, 64, 64), (2, 0, 1)])
def test_there_are_as_many_workers_as_processors_and_memory_allow(
    cores: int, gibibytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "processors", lambda: cores)
    monkeypatch.setattr(grading, "memory_of_machine", lambda: gibibytes << 30)
    assert worker_count() == count


@pytest.mark.parametrize(("gibibytes", "count"), [(64, 8), (3, 3), (0, 1)])
def test_there_are_as_many_tests_at_a_time_as_processors_and_memory_here_allow(
    gibibytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_tests, "processors", lambda: 8)
    monkeypatch.setattr(unit_tests, "memory_of_machine", lambda: gibibytes << 30)
    assert unit_tests.UnitTests(memory_mb=1024).limits().parallel == count


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
