"""Sections `evaluation` (stages sample and score) and `difficulty`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

from pydantic import Field, Tag, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.plugin_sections import NameOf
from dagrpo.core.section import LIST_OR_EVERY, MOST_TOKENS, Every, Seconds, Section, Seed, Temperature, TopK, TopP
from dagrpo.rewards.unit_tests import UnitTests
from dagrpo.rewards.verifiers import SCORERS
from dagrpo_answers.scorers import Scorer
from dagrpo_answers.verifier import EXTRACTION, Extractor


class Sampling(Section):
    seed: Seed = Field(1000, description="Seed of the sampled completions, joined with the run's seed.")
    samples: Annotated[int, Field(ge=0, le=65_536)] = Field(
        4, description="Number of sampled completions per problem, besides the greedy one."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature.")
    top_p: TopP = Field(1.0, description="Nucleus sampling.")
    top_k: TopK = Field(-1, description="Sample from the k likeliest tokens; -1: from all.")
    max_new_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        20, description="Longest completion, in tokens; a longer one is truncated."
    )
    max_problems: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Evaluate only the first problems of each task; null: all."
    )
    without_pictures: bool = Field(
        True,
        description="Also complete each problem with pictures greedily without them, which measures what the text alone gives.",
    )

    @model_validator(mode="after")
    def _check_top_k(self) -> Self:
        if self.top_k == 0:
            raise UserError("evaluation.sampling.top_k is 0: give -1 to sample from all tokens, or a positive number")
        return self


class Scoring(Section):
    extractor: Extractor = Field(
        "strict", description=f"How to extract the answer; a change rescores without sampling again. {EXTRACTION}"
    )
    also: Annotated[list[Annotated[str, NameOf(SCORERS)]], Field(max_length=20)] = Field(
        [],
        description="Published scorers to judge by besides, each on the tasks that it is for, for numbers beside a paper's; a change "
        "rescores without sampling again.",
    )
    verify_seconds: Seconds = Field(2.0, description="Time limit of math-verify for one answer, in seconds.")
    unit_tests: UnitTests = Field(UnitTests(), description="Limits of programs under test (verifier unit_tests).")
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(0.95, description="Confidence level of the intervals.")
    bootstrap_draws: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        2000, description="Number of bootstrap resamples of the problems."
    )
    bootstrap_seed: Seed = Field(0, description="Seed of the bootstrap.")

    @model_validator(mode="after")
    def _scorers_differ(self) -> Self:
        if twice := [name for name in dict.fromkeys(self.also) if self.also.count(name) > 1]:
            raise UserError(f"evaluation.scoring.also names {twice[0]} more than once: remove the repetition")
        return self

    def scorers_for(self, verifier: str) -> list[Scorer]:
        """Return the published scorers of a task with this verifier, in the order of `also`."""
        return [scorer for scorer in map(SCORERS.get, self.also) if scorer.suits(verifier)]


if TYPE_CHECKING:
    from dagrpo.data.config import Data

BASE_AND_TRAINED = ["base", "trained"]
CHOSEN = "chosen"  # the policy of evaluation.choose
STEP = "step_"  # before the step, in the name of a kept policy
PolicyName = Annotated[str, Field(pattern=r"^(base|trained|step_[1-9][0-9]{0,7})$")]


class Keeps(Protocol):
    """Section training, of which an evaluation knows nothing else."""

    @property
    def steps(self) -> int: ...
    @property
    def kept_steps(self) -> Sequence[int]: ...
    @property
    def patience(self) -> int | None: ...


class Evaluation(Section):
    policies: Annotated[Every | Annotated[list[PolicyName], Field(max_length=1000), Tag("[list]")], LIST_OR_EVERY] = (
        Field(
            BASE_AND_TRAINED,
            description="Policies to sample and score: base and trained, which the report compares, and kept ones for its curve over "
            "steps, such as step_40. {every: 20}: base, trained, and each 20th step before the last one. "
            "training.keep_policies keeps them.",
        )
    )
    choose: Literal["best"] | None = Field(
        None,
        description="best: choose one of the policies that training.keep_policies keeps and the trained one, for each seed: that with "
        "the highest greedy accuracy on the validation rows, the mean over the tasks that have some, and of equal ones the earliest. It "
        "alone is then scored on the test rows, as the policy `chosen`, with the choice in its interval.",
    )
    oracles: bool = Field(
        False,
        description="Also evaluate tasks whose tool or user knows the answer; their scores are marked (oracle).",
    )
    sampling: Sampling = Field(Sampling(), description="Sampling (stage sample).")
    scoring: Scoring = Field(Scoring(), description="Grading and intervals (stage score).")

    def steps(self, training: Keeps) -> list[int]:
        """List the steps of the kept policies that are evaluated, ascending."""
        if isinstance(self.policies, dict):
            return list(range(self.policies["every"], training.steps, self.policies["every"]))
        return sorted(int(name.removeprefix(STEP)) for name in self.policies if name.startswith(STEP))

    def policy_names(self, training: Keeps) -> list[str]:
        """List all policies that are evaluated, in the order of training, the chosen one last."""
        return [
            "base",
            *(f"{STEP}{step}" for step in self.steps(training)),
            "trained",
            *([CHOSEN] if self.choose else []),
        ]

    def candidates(self, training: Keeps) -> list[str]:
        """List the policies among which one is chosen, in the order of training; [] if none is."""
        kept = [f"{STEP}{step}" for step in training.kept_steps if step < training.steps]
        return [*kept, "trained"] if self.choose else []

    def validated(self, experiment: Experiment, data: "Data") -> list[str]:
        """List the evaluated tasks with validation rows, by which a policy is chosen."""
        return [task for task in experiment.evaluate if data.has_validation(task)]

    def check(self, training: Keeps, experiment: Experiment, data: "Data") -> None:
        """Raise UserError unless base and trained are evaluated, all others kept, each once, and one can be chosen."""
        self._check_choice(training, experiment, data)
        names = [name for name in self.policy_names(training) if name != CHOSEN]
        if isinstance(self.policies, list) and sorted(self.policies) != sorted(set(names)):
            raise UserError(
                f"evaluation.policies is {', '.join(self.policies)}: name base and trained, which the report compares, and each "
                "policy once"
            )
        if isinstance(self.policies, dict) and not self.steps(training):
            raise UserError(
                f"evaluation.policies asks for every {self.policies['every']} steps, but training.steps is {training.steps}, so that "
                "only base and trained remain: lower the former or name these two"
            )
        if training.steps in self.steps(training):
            raise UserError(
                f"evaluation.policies names {STEP}{training.steps}, but the policy of the last step is `trained`: leave it out"
            )
        if missing := [step for step in self.steps(training) if step not in training.kept_steps]:
            raise UserError(
                f"evaluation.policies asks for step {missing[0]}, which is not among the steps of training.keep_policies "
                f"({', '.join(map(str, training.kept_steps)) or 'none'}): keep it there, or leave it out here"
            )

    def _check_choice(self, training: Keeps, experiment: Experiment, data: "Data") -> None:
        if self.choose and len(self.candidates(training)) == 1:
            raise UserError(
                "evaluation.choose is best, but training.keep_policies keeps no policy before the last step: give it steps, such as "
                "{every: 20}"
            )
        if training.patience is not None and (self.choose or self.steps(training)):
            asked = "choose is best" if self.choose else f"policies asks for step {self.steps(training)[0]}"
            raise UserError(
                f"evaluation.{asked}, and training.patience may end a run before a step that is to be kept: set the latter to null, or "
                "evaluate base and trained alone"
            )
        if self.choose and not self.validated(experiment, data):
            raise UserError(
                f"evaluation.choose is best, but no task of experiment.evaluate ({', '.join(experiment.evaluate)}) has validation rows: "
                "data.held_out_validation holds some out of train"
            )


class Difficulty(Section):
    samples: Annotated[int, Field(ge=0, le=65_536)] = Field(
        0, description="Number of completions per train problem for its pass rate; 0: rate no problem."
    )
    seed: Seed = Field(2000, description="Seed of the completions.")
