"""Stage train with a stand-in for Megatron-LM on one host and on two, which has its files and trains nothing (stand_in/)."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hosts import two_hosts
from tests.trainer import foreign_hosts, foreign_runs, runs
from tests.trainer.foreign_runs import STAND_INS, run_in, silent_for, train

from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.config.overlay import merged
from dagrpo.core.errors import TransientError, UserError
from dagrpo.data.schema import to_table
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_megatron.backend import running

pytestmark = pytest.mark.nightly


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    """A run of Megatron-LM's stand-in, with two updates a step."""
    changes = {
        "training": {"mini_batches": 2, "backend": {"name": "megatron_lm"}},
        "runtime": {"backend": {"silent_minutes": 8, "source": str(STAND_INS["megatron_lm"])}},
    }
    return run_in(tmp_path, changes)


def test_a_run_that_is_killed_resumes_and_brings_checkpoint_and_metrics_back(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS_AFTER", "5")
    with pytest.raises(TransientError, match="ended with exit code 1"):
        train(run)
    monkeypatch.delenv("STAND_IN_ENDS_AFTER")
    reported: list[int] = []
    train(run, lambda step, metrics: reported.append(step))
    assert reported == [1, 2, 3, 4]
    assert verify(run.policy).format == "dcp"
    before, after = open_tensors(run.initial), open_tensors(run.policy)
    for name in before.specs:
        assert torch.allclose(after.read(name), before.read(name) + 8), name
    table = read_parquet(run.metrics).to_pydict()
    assert table["step"] == [1, 2, 3, 4]
    assert table["policy/grad_norm"] == [1.5, 3.5, 5.5, 7.5]  # means over a step's updates
    assert table["policy/learning_rate"] == [run.training.learning_rate] * 4
    assert table["rollout/truncated_fraction"] == [0.0] * 4
    assert table["rollout/length_mean"] == table["rollout/length_max"]
    assert all(0 <= reward <= 1 for reward in table["reward/mean"])
    assert table["megatron_lm/rl/kl_term"] == [1.5, 3.5, 5.5, 7.5]
    assert read_json(run.state / "agent.json")["drawn"] == 8  # of the two steps before the checkpoint


def test_a_response_ends_at_the_limit_of_new_tokens(run: TrainingRun) -> None:
    run = replace(run, rollout=run.rollout.model_copy(update={"max_new_tokens": 3}))
    train(run)
    table = read_parquet(run.metrics).to_pydict()
    assert table["rollout/length_max"] == [3.0] * 4
    assert table["rollout/truncated_fraction"] == [1.0] * 4


def test_a_program_that_hangs_is_stopped_with_all_its_processes(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_HANGS_AFTER", "2")
    monkeypatch.setattr("dagrpo.trainer.backend_files.SECONDS_TO_END", 0.0)  # torchrun has no time to end its ranks
    with pytest.raises(TransientError, match=r"has written nothing to .* for 1\.5 minutes"):
        train(silent_for(run, 1.5))
    deadline = time.monotonic() + 20
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_of(run) == []


def processes_of(run: TrainingRun) -> list[str]:
    """Command lines that name the state of the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(run.state) in line]


def test_a_folder_without_megatron_lm_is_refused_with_its_remedy(run: TrainingRun, tmp_path: Path) -> None:
    backend = run.runtime.backend.model_copy(update={"source": str(tmp_path)})
    with pytest.raises(UserError, match=r"cannot import it from .*runtime\.backend\.python"):
        train(replace(run, runtime=run.runtime.model_copy(update={"backend": backend})))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rl-generation-lags": 2}, "unrecognized arguments: --rl-generation-lags 2"),
        ({"cuda-graph-impl": "some"}, "invalid choice: 'some'"),
    ],
)
def test_what_megatron_lms_parser_refuses_is_refused_before_any_work(
    settings: dict[str, object], message: str, run: TrainingRun
) -> None:
    with pytest.raises(UserError, match=message):
        train(run, settings=settings)


def test_a_response_that_cannot_be_graded_ends_the_run_with_its_reason(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [replace(runs.task_row(number), ground_truth="none") for number in range(10)]
    write_parquet(run.train_splits["arithmetic"], to_table(rows))
    monkeypatch.setattr(running, "check_command", lambda *given: None)  # it would find the reason before
    with pytest.raises(UserError, match=r"A response cannot be graded: row \d"):
        train(run)


CHANGES: dict[str, Any] = {
    "training": {"mini_batches": 2, "backend": {"name": "megatron_lm"}},
    "runtime": {"backend": {"silent_minutes": 8, "source": str(foreign_runs.STAND_INS["megatron_lm"])}},
}
ON_TWO = merged(CHANGES, foreign_hosts.ON_TWO)


def test_two_hosts_leave_the_policy_of_one_host_with_as_many_processes_also_after_one_was_killed(
    tmp_path: Path,
) -> None:
    with two_hosts() as hosts:
        foreign_hosts.lose_last(hosts, tmp_path, ON_TWO, "iter_0000004/common.pt", hangs_after=6)
        foreign_hosts.require_policy_of_one_host(hosts, tmp_path, CHANGES)
