"""Held-out problems that a policy answers during training.

They are sampled and graded as in the stages sample and score, greedily only.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Row
from dagrpo.data.filters.text import identity
from dagrpo.data.schema import from_table
from dagrpo.engine.interface import RolloutEngine
from dagrpo.evaluation import verdicts
from dagrpo.evaluation.held_out_table import OF_SCORES, TableRow
from dagrpo.evaluation.sampling import SplitAttempts, attempt_unseen, rendered
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.build_table import rollout_table
from dagrpo.tools import TOOLS
from dagrpo.tools.simulated_users import INTERACTIONS
from dagrpo.utils.tables import read_parquet
from dagrpo_answers.verifier import Extractor

Identity = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out problems of one task, and the parameters of the attempts."""

    prompts: Sequence[Prompt]
    attempts: SplitAttempts

    @property
    def task(self) -> str:
        return self.prompts[0].row.task

    def answered(
        self, step: int, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase, grader: Grader, extractor: Extractor
    ) -> list[TableRow]:
        """Let the engine's policy answer the problems; return graded rows of HELD_OUT. Raises ServerError if the engine fails."""
        what = f"held out {self.task} (seed {self.attempts.seeds[1]}), step {step}"
        trajectories = attempt_unseen(self.prompts, self.attempts, engine, tokenizer, what=what)
        completions = rollout_table(trajectories)
        columns = {name: completions.column(name) for name in ("task", "problem_index")}
        scores = verdicts.scores_of(completions, extractor, grader)
        table = pa.table({**columns, **verdicts.columns(scores, completions)}).select(OF_SCORES)
        own = {"step": step, "split": self.attempts.split.stem, "oracle": self._has_oracle}
        return [{**own, **row} for row in table.to_pylist()]

    @property
    def _has_oracle(self) -> bool:
        users = {prompt.row.interaction for prompt in self.prompts} - {""}
        tools = {name for prompt in self.prompts for name in prompt.row.tools}
        return any(INTERACTIONS.get(name).oracle for name in users) or any(TOOLS.get(name).oracle for name in tools)


def held_out(
    attempts: SplitAttempts, count: int, learned: Collection[Identity], tokenizer: PreTrainedTokenizerBase
) -> HeldOut:
    """Return up to `count` rendered problems of `attempts.split`, without those that are in `learned`.

    Raises UserError if a prompt is too long, or no problem remains.
    """
    rows = chosen_rows(from_table(read_parquet(attempts.split)), count, learned)
    if not rows:
        raise UserError(
            f"{attempts.split} has only problems that are also in the train split, so that training.evaluate_every has nothing "
            "to evaluate: set it to 0, or data.contamination to drop."
        )
    return HeldOut(prompts=rendered(rows, attempts, tokenizer), attempts=attempts)


def chosen_rows(rows: Sequence[Row], count: int, learned: Collection[Identity] = ()) -> list[tuple[int, Row]]:
    """Return the rows with the smallest sha256 of the normalised question, numbered, in the order of the split.

    The choice depends neither on a seed nor on the order of the split, which data sets sort by subject or level.
    """
    ranked = [(_rank(own), index) for index, row in enumerate(rows) if (own := identity(row)) not in learned]
    return [(index, rows[index]) for index in sorted(index for _, index in sorted(ranked)[:count])]


def _rank(own: Identity) -> str:
    return hashlib.sha256("\n".join(own).encode()).hexdigest()


def split_of(validation: Path, test: Path) -> Path:
    """Return the validation split, so that the test split stays unseen; the test split if that has no rows."""
    return validation if read_parquet(validation).num_rows else test


def identities(split: Path) -> set[Identity]:
    """Return the identity of every problem of a split, which does not depend on its typography."""
    return {identity(row) for row in from_table(read_parquet(split))}
