"""A run from which nothing can be learned says so, and why that may be, now and then."""

import pytest

from dagrpo.trainer.checks.no_signal import METRIC, NoSignal
from dagrpo.trainer.config.checks import Gates

STEPS = Gates().steps_in_a_row


def _metrics(**own: float) -> dict[str, float]:
    same = {
        "rollout/groups_without_advantage": 1.0,
        "reward/accuracy": 0.0,
        "rollout/truncated_fraction": 0.0,
        "reward/missing_answer_fraction": 0.0,
        "reward/unverifiable_fraction": 0.0,
    }
    return same | own


def _said(capsys: pytest.CaptureFixture[str], steps: int, **own: float) -> list[str]:
    watched = NoSignal(Gates(), seed=3, max_new_tokens=20)
    for step in range(1, steps + 1):
        watched.counted(_metrics(**own))
        watched.check(step)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"reward/accuracy": 1.0}, "all answers are right, so take harder problems"),
        ({}, "all answers are wrong, so take easier problems"),
        (
            {"rollout/truncated_fraction": 0.9},
            "90% of the completions are cut off at rollout.max_new_tokens (20), so raise it",
        ),
        ({"reward/missing_answer_fraction": 0.8}, "in 80% of the completions no answer is found"),
        (
            {"reward/accuracy": 0.5},
            "the answers to a problem are all right or all wrong, so raise training.samples_per_prompt",
        ),
    ],
)
def test_the_sentence_names_the_likeliest_cause(
    capsys: pytest.CaptureFixture[str], own: dict[str, float], cause: str
) -> None:
    (said,) = _said(capsys, STEPS, **own)
    assert cause in said


def test_it_is_said_again_only_after_as_many_steps_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert _said(capsys, STEPS - 1) == []
    assert len(_said(capsys, 2 * STEPS - 1)) == 1
    assert [line.partition(":")[0] for line in _said(capsys, 2 * STEPS)] == [
        f"train (seed 3), step {n}" for n in (STEPS, 2 * STEPS)
    ]


def test_one_problem_whose_samples_differ_begins_the_count_anew() -> None:
    watched = NoSignal(Gates(), seed=3, max_new_tokens=20)
    counts = [
        watched.counted(_metrics(**{"rollout/groups_without_advantage": share}))[METRIC]
        for share in (1.0, 1.0, 0.97, 1.0)
    ]
    assert counts == [1, 2, 0, 1]


def test_a_share_that_is_left_open_is_not_watched(capsys: pytest.CaptureFixture[str]) -> None:
    watched = NoSignal(Gates(without_advantage=None), seed=3, max_new_tokens=20)
    counts = [watched.counted(_metrics())[METRIC] for _ in range(STEPS)]
    watched.check(STEPS)
    assert counts == [0] * STEPS
    assert capsys.readouterr().err == ""
    for _ in range(STEPS):
        watched.counted(_metrics(**{"rollout/truncated_fraction": 1.0}))
    watched.check(2 * STEPS)
    assert "are cut off at rollout.max_new_tokens" in capsys.readouterr().err
