"""Training attempts at several steps, prepared for the page.

`samples` chooses prompts and steps. Of each group up to MOST_ATTEMPTS are displayed, evenly from the highest reward to the
lowest. The size of the page is bounded: texts are cut, and tokens are left out once there are too many.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from markupsafe import escape

from dagrpo.checkpoints.tokenizers import Decode, decoder_of
from dagrpo.core.escape import visible
from dagrpo.report.attempt import LONGEST_FIRST_LINE, Attempt, attempt_of
from dagrpo.report.conversations import NEEDED
from dagrpo.report.inputs import Inputs
from dagrpo.report.rollouts import step_rollouts
from dagrpo.report.samples import Problem, Series, evenly, ranked, series_of_training
from dagrpo.report.splits import TRAINING
from dagrpo.rollout.attempts_file import ROW, AttemptsFile
from dagrpo.rollout.table import REWARDS, without_discarded
from dagrpo.rollout.transcript import Transcript

MOST_ATTEMPTS = 4  # of a group
LONGEST_TEXT = 1000  # characters of each text of an attempt
MOST_TEXT = 200_000  # characters of all attempts, escaped as in the page
MARKUP = 800  # characters of the page that an attempt takes beside its texts
MOST_TOKENS = 200  # of one attempt
ROOM_FOR_TOKENS = 2_500  # of all attempts: each is a piece of markup of some 50 bytes
LEAST_PROBABILITIES = (0.9, 0.5, 0.1)  # of a token: how dark its background is
REMEDY = "run the stage model again"
OF_GROUPS = ["task", "problem_index", "correct", "reward", "kept", ROW]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token that the policy wrote."""

    text: str
    logprob: str  # by the engine that sampled it, in nats
    doubt: int  # 0: almost certain; 3: among many


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedAttempt:
    """One attempt with the first of its tokens."""

    attempt: Attempt
    tokens: tuple[Token, ...]
    tokens_left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A prompt at one step, with some attempts of its group."""

    step: int
    problem_index: int
    question: str
    ground_truth: str
    pictures: tuple[str, ...]  # data URIs; of one prompt at several steps, at the first alone
    samples: int  # in the group
    correct: int  # of them
    mean_reward: float
    attempts: Sequence[TokenizedAttempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """One prompt, or one kind of problem, over steps."""

    kind: str | None
    is_one_prompt: bool
    moments: Sequence[Moment]


def over_steps(inputs: Inputs, count: int) -> list[SeriesView]:
    """Return up to `count` series of the first seed; [] if the rollouts do not name their problems."""
    seed = inputs.seeds[0]
    return list(_Preparer(inputs, seed).series(series_of_training(inputs, seed, count)))


class _Preparer:
    """Prepares attempts within the page's budget of characters and tokens."""

    def __init__(self, inputs: Inputs, seed: int) -> None:
        self._inputs = inputs
        self._seed = seed
        self._decode = decoder_of(inputs.tokenizer, REMEDY) if inputs.tokenizer else None
        self._characters = MOST_TEXT
        self._tokens = ROOM_FOR_TOKENS
        self._steps: dict[int, tuple[AttemptsFile, dict[Problem, list[dict[str, Any]]]]] = {}

    def series(self, chosen: Sequence[Series]) -> Iterator[SeriesView]:
        for each in chosen:
            moments: list[Moment] = []
            for step, problem in zip(each.steps, each.problems, strict=True):
                moment = self._moment(step, problem, has_pictures_above=each.is_one_prompt and bool(moments))
                moments += [] if moment is None else [moment]
            if moments:
                yield SeriesView(kind=each.kind, is_one_prompt=each.is_one_prompt, moments=moments)

    def _moment(self, step: int, problem: Problem, *, has_pictures_above: bool) -> Moment | None:
        """Return a prompt's attempts at one step; None without room left, or if the table does not name its problem.

        `has_pictures_above`: the page already has the prompt with its pictures.
        """
        file, rows = self._group(step, problem)
        with_texts = [row[ROW] for row in rows if row["kept"] != REWARDS]
        if not with_texts or self._characters <= 0:
            return None
        shown = file.rows([with_texts[index] for index in evenly(range(len(with_texts)), MOST_ATTEMPTS)])
        first = shown[0]
        return Moment(
            step=step,
            problem_index=problem[1],
            question=visible(first["question"], LONGEST_TEXT),
            ground_truth=visible(first["ground_truth"], LONGEST_TEXT),
            pictures=() if has_pictures_above else self._inputs.pictures.of(TRAINING, problem[1]),
            samples=len(rows),
            correct=sum(bool(row["correct"]) for row in rows),
            mean_reward=sum(row["reward"] for row in rows) / len(rows),
            attempts=[self._attempt(row) for row in shown],
        )

    def _group(self, step: int, problem: Problem) -> tuple[AttemptsFile, list[dict[str, Any]]]:
        """Return a step's file and the short columns of the attempts at a problem, best first."""
        if step not in self._steps:
            file = step_rollouts(self._inputs, self._seed, step)
            is_known = all(name in file.columns for name in NEEDED)
            self._steps[step] = (file, _by_problem(without_discarded(file.short)) if is_known else {})
        file, groups = self._steps[step]
        return file, groups.get(problem, [])

    def _attempt(self, row: Mapping[str, Any]) -> TokenizedAttempt:
        attempt = attempt_of(row, LONGEST_TEXT)
        self._characters -= MARKUP + sum(len(escape(text)) for text in _texts(attempt.read))
        tokens = tuple(islice(_tokens(row, self._decode), min(MOST_TOKENS, self._tokens)))
        self._tokens -= len(tokens)
        return TokenizedAttempt(
            attempt=attempt, tokens=tokens, tokens_left_out=len(row["completion_ids"]) - len(tokens)
        )


def _texts(read: Transcript) -> Iterator[str]:
    """Yield the texts of an attempt as often as the page has them."""
    yield from (read.fault, read.extracted or "")
    for utterance in read.utterances:
        yield from (utterance.text, utterance.thinking)
        for call in utterance.calls:
            yield from (2 * call.arguments, 2 * call.result)  # their beginnings are part of the summary


def _by_problem(table: pa.Table) -> dict[Problem, list[dict[str, Any]]]:
    rows, groups = table.select(OF_GROUPS).to_pylist(), dict[Problem, list[dict[str, Any]]]()
    for row in (rows[position] for position in ranked(table)):
        groups.setdefault((row["task"], row["problem_index"]), []).append(row)
    return groups


def _tokens(row: Mapping[str, Any], decode: Decode | None) -> Iterator[Token]:
    """Yield every token that the policy wrote, in order. A part of a character becomes U+FFFD."""
    for token_id, logprob in zip(row["completion_ids"], row.get("rollout_logprobs", ()), strict=False):
        text = decode([token_id]) if decode else str(token_id)
        probability = math.exp(min(logprob, 0.0))
        yield Token(
            text=visible(text, LONGEST_FIRST_LINE).replace("\n", "\\n").replace("\t", "\\t"),
            logprob=f"{logprob:.2f}",
            doubt=sum(not probability >= least for least in LEAST_PROBABILITIES),
        )
