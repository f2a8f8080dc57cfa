"""Tokens that are drawn from a few: engine and trainer speak of the same distribution, also in a run that was killed."""

from array import array
from dataclasses import replace
from pathlib import Path

import torch
from tests.trainer import runs

from dagrpo.rollout.config import Rollout
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.tables import read_parquet

CPU = torch.device("cpu")


def _run(inputs: tuple[Path, Path], out: Path) -> TrainingRun:
    run = runs.training_run(inputs, out / "state", out, steps=3)
    return replace(run, rollout=Rollout(max_new_tokens=runs.MAX_NEW_TOKENS, top_p=0.9, top_k=5))


def test_pairs_of_tokens_and_what_they_were_drawn_from_are_as_written_by_hand() -> None:
    """Three tokens, drawn from 3 and 7, from 7 alone, and from 1, 2 and 9."""
    support = TokenSupport.of([array("i", ids) for ids in ([3, 7], [7], [1, 2, 9])])
    assert support is not None
    whole, last = support.padded(torch.arange(3), CPU), support.padded(torch.tensor([1, 2]), CPU)
    assert whole.rows.tolist() == [0, 0, 1, 2, 2, 2]
    assert whole.token_ids.tolist() == [3, 7, 7, 1, 2, 9]
    assert last.rows.tolist() == [0, 1, 1, 1]
    assert last.token_ids.tolist() == [7, 1, 2, 9]
    apart = support.padded(torch.tensor([2, 0]), CPU)
    assert apart.rows.tolist() == [0, 0, 0, 1, 1]
    assert apart.token_ids.tolist() == [1, 2, 9, 3, 7]
    again = TokenSupport.from_tensors(support.tensors())
    assert again is not None
    assert again.padded(torch.tensor([1, 2]), CPU).token_ids.tolist() == [7, 1, 2, 9]
    assert TokenSupport.of([]) is None
    assert TokenSupport.from_tensors({}) is None


def test_the_trainers_softmax_is_over_what_was_recorded_of_each_token(tmp_path: Path) -> None:
    inputs = runs.make_inputs(tmp_path)
    whole, killed = (_run(inputs, tmp_path / name) for name in ("whole", "killed"))
    runs.execute(whole)
    assert max(read_parquet(whole.metrics)["policy/logprob_difference_max"].to_pylist()) < 1e-4
    table = read_parquet(whole.rollouts.with_name("step_00002.parquet"))
    for row in table.to_pylist():
        assert len(row["sampling_support"]) == len(row["completion_ids"])
        assert all(token in ids for token, ids in zip(row["completion_ids"], row["sampling_support"], strict=True))
        assert {len(ids) for ids in row["sampling_support"]} <= {5, 6}
    runs.execute(killed, stop=lambda step: step == 3)
    runs.execute(killed)
    assert runs.bytes_of(killed) == runs.bytes_of(whole)
