"""What each correction does with the difference between engine and trainer, on the rollouts of runs.

    snakemake --cores all target --config rollout__dtype=bfloat16 training__steps=40 algorithm__correction__name=none
    python benchmarks/correction.py results/arithmetic_tiny~*
    python benchmarks/correction.py results/arithmetic_tiny~* --join 64

The first command is a try of the shipped experiment, whose trainer computes in float32, with an engine in bfloat16. The others
read the rollouts that it recorded, so that all corrections see the same tokens. `--join` takes so many trajectories for one: what
weights of sequences do to completions of a thousand tokens, if their tokens differ by as much as those of the tiny model.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from dagrpo.algorithms.corrections import CORRECTIONS, weights_of
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.trainer.metrics.off_policy import effective_sample_size, off_policy_metrics

COLUMNS = ["rollout_logprobs", "logprob_differences"]
OF_THE_ENGINE = (
    "policy/off_policy_k3_kl",
    "policy/off_policy_chi2_token",
    "policy/off_policy_chi2_sequence",
    "policy/off_policy_weight_min",
    "policy/off_policy_weight_max",
    "policy/off_policy_outside_fraction",
    "policy/off_policy_probability_correlation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The tokens of all trajectories that a run has learned from, step after step."""

    rollout: NDArray[np.float64]  # [tokens], the engine's logprobs
    trainer: NDArray[np.float64]  # [tokens], the trainer's, of the policy that sampled
    lengths: list[int]  # [trajectories]

    @classmethod
    def of(cls, folder: Path) -> "Recorded":
        """Those of every step below a folder, which may be a run's, an experiment's or that of the rollouts."""
        paths = sorted(folder.rglob("step_*.parquet"))
        if not paths:
            raise SystemExit(
                f"{folder} has no rollouts (step_*.parquet) in it: name the folder of a run that is finished."
            )
        rows = [row for path in paths for row in pq.read_table(path, columns=COLUMNS).to_pylist()]
        learned = [row for row in rows if row["logprob_differences"]]
        return cls(
            rollout=np.concatenate([row["rollout_logprobs"] for row in learned]),
            trainer=np.concatenate([np.add(row["rollout_logprobs"], row["logprob_differences"]) for row in learned]),
            lengths=[len(row["logprob_differences"]) for row in learned],
        )

    def joined(self, count: int) -> "Recorded":
        """The same tokens, with so many trajectories as one."""
        lengths = [sum(self.lengths[first : first + count]) for first in range(0, len(self.lengths), count)]
        return Recorded(rollout=self.rollout, trainer=self.trainer, lengths=lengths)

    def tokens(self) -> TokenBatch:
        """What a correction sees of them; the rest is made up."""
        old = torch.from_numpy(self.trainer)
        return TokenBatch(
            logprobs=old,
            old_logprobs=old,
            rollout_logprobs=torch.from_numpy(self.rollout),
            reference_logprobs=None,
            entropy=torch.zeros_like(old),
            advantages=torch.zeros_like(old),
            positive=torch.zeros_like(old, dtype=torch.bool),
            sequence=torch.arange(len(self.lengths)).repeat_interleave(torch.tensor(self.lengths)),
            sequences=len(self.lengths),
        )


def engine_row(name: str, recorded: Recorded) -> list[str]:
    """How far the engine is from the trainer, before any correction."""
    gap = np.abs(recorded.rollout - recorded.trainer)
    metrics = off_policy_metrics(recorded.rollout, recorded.trainer, recorded.lengths)
    figures = [gap.mean(), gap.max(), *(metrics[each] for each in OF_THE_ENGINE)]
    return [name, f"{len(gap):,}", f"{len(gap) / len(recorded.lengths):.1f}", *(f"{figure:.3g}" for figure in figures)]


def correction_row(name: str, recorded: Recorded) -> list[str]:
    """What one correction with its defaults makes of it: weights and shares of tokens."""
    config: Any = CORRECTIONS.get(name).config(name=name)
    result = weights_of(recorded.tokens(), config)
    weights = result.per_token.numpy()
    cut, masked = (
        float(result.metrics.get(f"correction_{what}_fraction", torch.zeros(()))) / len(weights)
        for what in ("truncated", "masked")
    )
    return [name, f"{weights.mean():.4f}", f"{effective_sample_size(weights):.4f}", f"{cut:.3%}", f"{masked:.3%}"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of runs, of experiments, or of rollouts")
    parser.add_argument("--join", type=int, default=1, help="trajectories that are taken for one")
    options = parser.parse_args()
    recorded = {str(folder): Recorded.of(folder).joined(options.join) for folder in options.folders}
    shown = [name.removeprefix("policy/off_policy_") for name in OF_THE_ENGINE]
    header = ["rollouts", "tokens", "tokens per sequence", "gap, mean", "gap, most", *shown]
    print(table(header, [engine_row(name, each) for name, each in recorded.items()]))
    for name, each in recorded.items():
        print(f"\n{name}\n")
        header = ["correction", "weight, mean", "effective sample size", "truncated", "masked"]
        print(table(header, [correction_row(correction, each) for correction in CORRECTIONS.own_names()]))


if __name__ == "__main__":
    main()
