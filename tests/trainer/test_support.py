"""Whole runs whose tokens are drawn from a few: engine and trainer speak of the same distribution, also after a kill."""

from dataclasses import replace
from pathlib import Path

from tests.trainer import runs

from dagrpo.files import read_parquet
from dagrpo.params.rollout import Rollout
from dagrpo.trainer.run import TrainingRun


def _run(inputs: tuple[Path, Path], out: Path) -> TrainingRun:
    run = runs.training_run(inputs, out / "state", out, steps=3)
    return replace(run, rollout=Rollout(max_new_tokens=runs.MAX_NEW_TOKENS, top_p=0.9, top_k=5))


def test_the_trainers_softmax_is_over_what_was_recorded_of_each_token(tmp_path: Path) -> None:
    inputs = runs.make_inputs(tmp_path)
    whole, killed = (_run(inputs, tmp_path / name) for name in ("whole", "killed"))
    runs.execute(whole)
    assert max(read_parquet(whole.metrics)["logprob_difference_max"].to_pylist()) < 1e-4
    table = read_parquet(whole.rollouts.with_name("step_00002.parquet"))
    for row in table.to_pylist():
        assert len(row["sampling_support"]) == len(row["completion_ids"])
        assert all(token in ids for token, ids in zip(row["completion_ids"], row["sampling_support"], strict=True))
        assert {len(ids) for ids in row["sampling_support"]} <= {5, 6}
    runs.execute(killed, stop=lambda step: step == 3)
    runs.execute(killed)
    assert runs.bytes_of(killed) == runs.bytes_of(whole)
