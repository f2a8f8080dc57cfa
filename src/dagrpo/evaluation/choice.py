"""Choice of a policy by validation rows, with its share of intervals.

The chosen policy alone is scored on the test rows, which took no part in the choice: its score there is as right for that policy as
any other's. But other validation rows would have chosen another step. As the choice is part of the procedure, it is made again in each
draw of a bootstrap of the validation rows (Efron 2014, Estimation and accuracy after model selection, Journal of the American Statistical
Association 109), where the draw's step j* moves the score by v[j*], its mean over all validation rows. The spread of the choice is
the standard deviation of v[j*] over the draws; its half-width joins that of the test score by squares, as the two are independent
(Zou and Donner 2008, Statistics in Medicine 27). Rows left out of a draw (Tsamardinos et al. 2018, Machine Learning 107) would
give v[j*] without the draw's own optimism, but a third of the rows says too little: their noise is many times the spread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.core.experiment import TaskName
from dagrpo.core.section import Section
from dagrpo.evaluation.config import STEP, Scoring
from dagrpo.evaluation.outcomes import outcomes, values_per_problem
from dagrpo.evaluation.scoring import resampling_of, score
from dagrpo.evaluation.statistics import DRAWN_AT_ONCE, Estimate, Floats, Resampling
from dagrpo.utils.files import read_json
from dagrpo.utils.manifest import MANIFEST

BY = "greedy"  # the metric that a policy is chosen by
DECIMALS = 12  # scores that differ by rounding are equal
LARGEST = 64 << 20  # bytes of choice.json
Choices = Sequence[Mapping[str, Any]]  # contents of choice.json, of several seeds
Share = Annotated[float, Field(ge=0, le=1)]
CandidateName = Annotated[str, Field(pattern=r"^(trained|step_[1-9][0-9]{0,7})$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best of several candidates, which are in the order of their steps."""

    best: int
    scores: tuple[float, ...]  # of each candidate: its greedy accuracy, the mean over tasks
    shares: tuple[float, ...]  # of the draws of validation rows, those in which it is the best
    draws: tuple[int, ...]  # the best in each draw
    means: Mapping[str, Mapping[str, tuple[float, ...]]]  # by task and metric, of each candidate


def choose(values: Mapping[str, Mapping[str, Floats]], resampling: Resampling) -> Choice:
    """Choose the candidate with the highest greedy accuracy, the mean over tasks; of equal ones the first.

    `values`: by task and metric, each [candidates, problems].
    """
    generator = np.random.Generator(np.random.PCG64(resampling.seed))
    by_task = [own[BY] for own in values.values()]
    scores = np.mean([each.mean(axis=1) for each in by_task], axis=0)
    drawn = np.mean([_drawn_means(each, resampling.draws, generator) for each in by_task], axis=0)
    again = drawn.round(DECIMALS).argmax(axis=1)  # [draws]
    return Choice(
        best=int(scores.round(DECIMALS).argmax()),
        scores=tuple(scores.tolist()),
        shares=tuple((np.bincount(again, minlength=len(scores)) / resampling.draws).tolist()),
        draws=tuple(again.tolist()),
        means={
            task: {name: tuple(each.mean(axis=1).tolist()) for name, each in metrics.items()}
            for task, metrics in values.items()
        },
    )


def _drawn_means(values: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """Return the mean over the problems of each draw, [draws, candidates]: all candidates meet the same problems."""
    problems = values.shape[1]
    chunk = max(1, DRAWN_AT_ONCE // problems)
    even = np.full(problems, 1 / problems)
    counts = (generator.multinomial(problems, even, size=min(chunk, draws - at)) for at in range(0, draws, chunk))
    return np.concatenate([each @ values.T / problems for each in counts])


def spread_of(choices: Choices, task: str, metric: str) -> float:
    """Return the standard deviation that choosing adds to a metric's mean over seeds, from choice.json of each; 0 of a task without rows.

    A draw has the same validation rows for all seeds, so that what these have in common counts in full.
    """
    chosen = [
        np.array(means)[np.asarray(each["draws"])]
        for each in choices
        if (means := each["means"].get(task, {}).get(metric)) is not None
    ]
    return float(np.mean(chosen, axis=0).std()) if chosen else 0.0


def with_choice(
    estimate: Estimate, spread: float, confidence: float, bounds: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """Return the estimate with the interval of training and choosing: wider than that of the chosen policy alone, by its spread."""
    if not spread:
        return estimate  # to the last bit
    half, value = NormalDist().inv_cdf((1 + confidence) / 2) * spread, estimate.value
    low, high = value - hypot(value - estimate.low, half), value + hypot(estimate.high - value, half)
    return Estimate(value=value, low=max(low, bounds[0]), high=min(high, bounds[1]))


def chosen_by(completions: Sequence[Path], scoring: Scoring) -> dict[str, Any]:
    """Return the content of choice.json, by the completions of validation/TASK/POLICY/: of each candidate, in any order.

    `trained` is the last candidate.
    """
    values: dict[str, dict[str, dict[str, Floats]]] = {}
    estimates: dict[str, dict[str, Any]] = {}
    for path in sorted(completions, key=lambda path: _place(path.parent.name)):
        task, policy = path.parts[-3:-1]
        scores, summary = score(path, scoring)
        values.setdefault(task, {})[policy] = values_per_problem(outcomes(scores, votes="maj_at_k" in summary))
        estimates.setdefault(policy, {})[task] = {"problems": summary["problems"], **summary["greedy"]}
    by_metric = {
        task: {name: np.stack([each[name] for each in own.values()]) for name in next(iter(own.values()))}
        for task, own in values.items()
    }
    choice, policies = choose(by_metric, resampling_of(scoring)), list(estimates)
    return {
        "policy": policies[choice.best],
        "candidates": [
            {"policy": policy, "score": score, "share": share, "tasks": estimates[policy]}
            for policy, score, share in zip(policies, choice.scores, choice.shares, strict=True)
        ],
        "draws": choice.draws,
        "means": choice.means,
    }


def _place(policy: str) -> tuple[bool, int]:
    return (False, int(policy.removeprefix(STEP))) if policy.startswith(STEP) else (True, 0)


class _Score(Section):
    problems: Annotated[int, Field(ge=1)]
    value: Share
    low: Share
    high: Share


class _Candidate(Section):
    policy: CandidateName
    score: Share
    share: Share
    tasks: Annotated[dict[TaskName, _Score], Field(min_length=1)]


class _Written(Section):
    """The content of choice.json."""

    policy: CandidateName
    candidates: list[_Candidate]
    draws: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    means: dict[TaskName, dict[str, list[Share]]]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        policies = {each.policy for each in self.candidates}
        count = len(self.candidates)
        if (
            len(policies) < count
            or self.policy not in policies
            or max(self.draws) >= count
            or any(self.means.keys() != each.tasks.keys() for each in self.candidates)
            or any(BY not in own or {*map(len, own.values())} != {count} for own in self.means.values())
        ):
            raise ValueError("its policy, candidates, draws and means do not belong together")
        return self


def read_choice(path: Path) -> dict[str, Any]:
    """Read choice.json. Raises UserError if the stage choose did not write it, or another policy's weights are beside it.

    These are compared by the digests of kept/ or exported/ of the run, if they are there.
    """
    from dagrpo.checkpoints.kept import read_kept
    from dagrpo.checkpoints.manifest import tensor_digest_of

    if path.is_file() and path.stat().st_size > LARGEST:
        raise UserError(f"{path} has more than {LARGEST:,} bytes: run the stage choose again.")
    content = read_json(path)
    try:
        policy = _Written.model_validate(content).policy
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path} does not say how a policy was chosen ({brief(first['loc'])}: {first['msg']}): run the stage choose again."
        ) from None
    folder = path.parents[1] / ("kept" if policy.startswith(STEP) else "exported")
    if (folder / MANIFEST).is_file():
        if policy.startswith(STEP):
            kept = read_kept(folder).policies.get(int(policy.removeprefix(STEP)))
            digest = kept and kept.digest
        else:
            digest = tensor_digest_of(folder)
        if digest != tensor_digest_of(path.parent):
            raise UserError(
                f"{path} says that {policy} was chosen, but beside it are other weights: run the stage choose again."
            )
    return dict(content)


def sentence(choice: Mapping[str, Any]) -> str:
    """Return how a policy was chosen, and what that adds to its intervals, from choice.json."""
    candidates = {each["policy"]: each for each in choice["candidates"]}
    own = candidates[choice["policy"]]
    rows = ", ".join(f"{each['problems']:,} of {task}" for task, each in own["tasks"].items())
    added = ", ".join(f"{100 * spread_of([choice], task, BY):.1f} points on {task}" for task in choice["means"])
    return (
        f"{named(own['policy'])} is the best of {len(candidates)} by greedy accuracy on validation rows ({rows}), which were neither "
        f"trained on nor tested: {100 * own['score']:.1f}%. Other validation rows would choose another one in "
        f"{1 - own['share']:.0%} of bootstrap draws, which moves the greedy accuracy by a standard deviation of {added}: its "
        f"intervals on {'this task' if len(choice['means']) == 1 else 'these tasks'} hold that."
    )


def named(policy: str) -> str:
    """Return a candidate in words."""
    return (
        f"The policy after step {policy.removeprefix(STEP)}"
        if policy.startswith(STEP)
        else "The policy of the last step"
    )
