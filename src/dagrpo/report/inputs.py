"""Inputs of the report, read and checked; computes nothing.

Evaluations, training metrics, rollouts and provenance. Seed, task and variant are parsed from the paths of the results layout.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from dagrpo.evaluation.choice import read_choice
from dagrpo.evaluation.config import STEP
from dagrpo.evaluation.held_out_table import HELD_OUT
from dagrpo.evaluation.outcomes import SCORES, Outcomes, outcomes, outcomes_by, scorers_of
from dagrpo.evaluation.statistics import Resampling
from dagrpo.report.splits import Kinds, Pictures
from dagrpo.rollout.table import read_table
from dagrpo.utils.files import read_object
from dagrpo.utils.tables import read_parquet

Variant: TypeAlias = str  # base, trained, step_40
VARIANTS = ("base", "trained")  # which the page compares
EVALUATION = re.compile(r"(?:^|/)seed_(\d+)/eval/([^/]+)/([^/]+)/[^/]+$")
SEED = re.compile(r"(?:^|/)seed_(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One policy's evaluation on one task."""

    scores: pa.Table  # columns as in SCORES
    outcomes: Outcomes
    summary: Mapping[str, Any]  # scores.json
    by_scorer: Mapping[str, Outcomes] = field(default_factory=dict)  # by each published scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of the report. Every task and seed has both base and trained scores, on identical problems."""

    experiment: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]  # ascending
    evaluations: Mapping[tuple[str, str, int], Evaluation]  # by task, variant, seed
    metrics: Mapping[int, pa.Table]  # metrics.parquet by seed
    rollouts: Mapping[int, Path]  # rollouts/manifest.json by seed
    held_out: Mapping[int, pa.Table]  # held_out.parquet by seed, columns as in HELD_OUT
    provenance: tuple[Path, ...]
    pictures: Pictures
    kinds: Kinds
    tokenizer: Path | None = None  # tokenizer.json of the policy
    choices: Mapping[int, Mapping[str, Any]] = field(
        default_factory=dict
    )  # choice.json by seed; {}: no policy was chosen

    def summary(self, task: str, variant: Variant, seed: int) -> Mapping[str, Any]:
        return self.evaluations[task, variant, seed].summary

    @property
    def policies(self) -> dict[str, int]:
        """Return the step of each evaluated policy: base at 0, the kept ones rising, trained at the last step of the longest seed."""
        kept = {variant for _, variant, _ in self.evaluations if variant.startswith(STEP)}
        steps = sorted((int(variant.removeprefix(STEP)), variant) for variant in kept)
        last = max(table.num_rows for table in self.metrics.values())
        return {"base": 0, **{variant: step for step, variant in steps}, "trained": last}

    def seeds_sampled(self, task: str, variant: Variant) -> list[int]:
        """List the seeds whose completions are no copies: a base policy that all seeds share is sampled by one of them."""
        seeds = dict[int, pa.Table]()
        for seed in self.seeds:
            scores = self.evaluations[task, variant, seed].scores
            if not any(scores.equals(other) for other in seeds.values()):
                seeds[seed] = scores
        return list(seeds)

    def resampling(self, task: str) -> Resampling:
        """Return how the intervals of this task's scores were resampled."""
        summary = self.summary(task, "base", self.seeds[0])
        return Resampling(confidence=summary["confidence"], **summary["bootstrap"])


def read_inputs(
    experiment: str,
    *,
    scores: Sequence[Path],
    summaries: Sequence[Path],
    metrics: Sequence[Path],
    rollouts: Sequence[Path],
    provenance: Sequence[Path],
    held_out: Sequence[Path] = (),
    splits: Sequence[Path] = (),
    choices: Sequence[Path] = (),
    tokenizer: Path | None = None,
) -> Inputs:
    """Read every input. Raises UserError naming a file that is missing or damaged.

    `held_out`: held-out results during training, if known. `splits`: sources of the problems' kinds and pictures; a task without
    its split shows neither. `choices`: how a policy was chosen. `tokenizer`: decodes token ids; without it they stay ids.
    """
    score_files = {evaluation_key(path): path for path in scores}
    summary_files = {evaluation_key(path): path for path in summaries}
    return Inputs(
        experiment=experiment,
        tasks=tuple(dict.fromkeys(task for task, _, _ in score_files)),
        seeds=tuple(sorted({seed for _, _, seed in score_files})),
        evaluations={key: read_evaluation(path, summary_files[key]) for key, path in score_files.items()},
        metrics={_seed(path): read_parquet(path) for path in metrics},
        rollouts={_seed(path): path for path in rollouts},
        held_out={_seed(path): read_table(path, HELD_OUT, may_be_empty=True) for path in held_out},
        provenance=tuple(sorted(provenance)),
        pictures=Pictures(splits),
        kinds=Kinds(splits),
        tokenizer=tokenizer,
        choices={_seed(path): read_choice(path) for path in choices},
    )


def evaluation_key(path: Path) -> tuple[str, str, int]:
    """Parse task, variant and seed from a path of the results layout: seed_<seed>/eval/<task>/<variant>/<file>."""
    match = EVALUATION.search(path.as_posix())
    assert match is not None, path
    seed, task, variant = match.groups()
    return task, variant, int(seed)


def _seed(path: Path) -> int:
    match = SEED.search(path.as_posix())
    assert match is not None, path
    return int(match.group(1))


def read_evaluation(scores: Path, summary: Path) -> Evaluation:
    """Read a scores.parquet and the scores.json beside it. Raises UserError if either is missing or damaged."""
    table, content = read_table(scores, SCORES), read_object(summary)
    whole = read_parquet(scores) if "scorers" in content else table
    by_scorer = {name: outcomes_by(name, whole) for name in scorers_of(whole)}
    arranged = outcomes(table, votes="maj_at_k" in content)
    return Evaluation(scores=table, outcomes=arranged, summary=content, by_scorer=by_scorer)
