"""Files of another trainer: checkpoints, lines, check, weights; and what the nodes beside the first run."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import runs

from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import CastTensors
from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import Program, take_weights
from dagrpo.trainer.run import no_report
from dagrpo.utils.distributed import World
from dagrpo_foreign import files, nodes
from dagrpo_foreign.files import LATEST, latest, own_module, read_line, run_check
from dagrpo_foreign.nodes import STARTS, Nodes, Start


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_they_have_the_dtype_of_the_initial_checkpoint_and_provenance_that_of_the_trainer(
    dtype: torch.dtype, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    run = runs.training_run(inputs, tmp_path / "state", tmp_path / "out", 1)
    initial = open_tensors(run.initial)
    take_weights(run, CastTensors(initial, dtype), tmp_path)
    assert open_tensors(run.policy).specs == initial.specs
    assert run.facts == {"saved_in": str(dtype).removeprefix("torch.")}


@pytest.mark.parametrize("name", ["global_step_{}", "iter_{:07d}"])
def test_an_emptied_tracker_names_the_newest_checkpoint_again(name: str, tmp_path: Path) -> None:
    assert latest(tmp_path) == 0
    for step in (8, 10):
        (tmp_path / name.format(step)).mkdir()
    (tmp_path / LATEST).write_text("")  # a kill between its opening and its writing
    assert latest(tmp_path) == 10
    assert (tmp_path / LATEST).read_text() == "10"


def test_half_a_line_at_a_kill_hides_no_exit_code(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[1], 'w').write('{\"step\": 1}\\n{\"ste'); sys.exit(3)"
    metrics = tmp_path / "metrics.jsonl"
    with pytest.raises(TransientError, match="ended with exit code 3"):
        Program(command=[sys.executable, "-c", program, str(metrics)], metrics=metrics, log=tmp_path / "log").run(
            no_report
        )


LATE = """
import json, os, sys, time

def add(step):
    with open(sys.argv[1], "a") as file:
        print(json.dumps({"step": step}), file=file)

add(1)
if os.fork() == 0:
    time.sleep(1)
    add(2)
"""


@pytest.mark.parametrize(("patience", "steps"), [(0.0, 1), (30.0, 2)])
def test_a_last_line_that_a_network_file_system_shows_late_is_waited_for(
    patience: float, steps: int, tmp_path: Path
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    command = [sys.executable, "-c", LATE, str(metrics)]
    program = Program(command=command, metrics=metrics, log=tmp_path / "log", last_step=2, patience=patience)
    assert len(program.run(no_report)) == steps


def test_a_last_line_that_never_comes_is_waited_for_in_vain_and_not_at_all_after_a_fault(tmp_path: Path) -> None:
    given: dict[str, Any] = {"metrics": tmp_path / "metrics.jsonl", "log": tmp_path / "log", "last_step": 2}
    assert Program(command=[sys.executable, "-c", ""], patience=0.5, **given).run(no_report) == []
    with pytest.raises(TransientError):
        Program(command=[sys.executable, "-c", "raise SystemExit(3)"], patience=math.inf, **given).run(no_report)


def test_a_program_that_is_silent_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(TransientError, match="has written nothing to"):
        Program(command=command, metrics=tmp_path / "lines", log=tmp_path / "log", silent_seconds=0.2).run(no_report)


def test_a_check_that_does_not_end_is_an_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.2)
    program = tmp_path / "check.py"
    program.write_text("import time; time.sleep(60)")
    run = runs.training_run((tmp_path, tmp_path), tmp_path, tmp_path, 1)
    with pytest.raises(UserError, match=r"verl's own code has not ended within .* see .*check\.log"):
        run_check(run, str(program), {}, tmp_path, "verl")


def test_a_trainer_runs_our_module_with_the_users_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a study is on our import path, and not on that of the trainer's environment."""
    (tmp_path / "own_reward.py").write_text("VALUE = 0.5\n")
    (tmp_path / "own_grading.py").write_text("import sys\nimport own_reward\nprint(own_reward.VALUE, sys.argv[1])\n")
    monkeypatch.syspath_prepend(tmp_path)
    command = own_module(ModuleType("own_grading"), tmp_path / "job.json")
    done = subprocess.run(command, env={"PYTHONPATH": "/elsewhere"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5", str(tmp_path / "job.json")]


def test_a_null_in_a_line_is_nan_and_keeps_its_column() -> None:
    line = {"step": 3, "data": {"actor/lr": 0.5, "grad": None, "note": "x"}}
    step, found = read_line(line, same={"actor/lr": "rate"}, trainer="verl")
    assert (step, found["rate"], sorted(found)) == (3, 0.5, ["rate", "verl/grad"])
    assert math.isnan(found["verl/grad"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(World):
    """World in which the first node has said a word, and in which a node keeps what it says."""

    words: list[Any]

    def broadcast(self, value: Any = None) -> Any:
        if self.is_rank_zero:
            self.words.append(value)
        return self.words[-1]

    def barrier(self) -> None:
        pass


def of(rank: int, words: list[Any], folder: Path) -> Nodes:
    world = Said(rank=rank, size=2, device=torch.device("cpu"), words=words)
    return Nodes(world=world, addresses=("127.0.0.1", "127.0.0.2"), state=folder)


def start(folder: Path) -> Start:
    command = [sys.executable, "-c", ""]
    return Start(what="Ray of node 1", command=command, log=str(folder / "log"), environment={"SECRET": "key"})


def test_what_a_node_runs_is_in_a_private_file_of_which_the_network_has_the_name_alone(tmp_path: Path) -> None:
    words: list[Any] = []
    with of(0, words, tmp_path).beside([start(tmp_path)]):
        assert (tmp_path / STARTS).stat().st_mode & 0o777 == 0o600
        assert words == [json.loads((tmp_path / STARTS).read_text())["name"]]
        assert of(1, words, tmp_path)._written(words[0]) == start(tmp_path)


def test_a_command_that_comes_from_the_network_or_an_earlier_start_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "SECONDS_TO_SEE_A_FILE", 0.5)
    with of(0, [], tmp_path).beside([start(tmp_path)]):
        for word in ("other", [{"what": "", "command": ["touch", str(tmp_path / "ran")], "log": "log"}]):
            with pytest.raises(TransientError, match=r"node 1 does not see .*starts\.json as the first node"):
                of(1, [word], tmp_path).follow()
    assert not (tmp_path / "ran").exists()


def test_a_program_that_is_to_last_may_not_end_before_not_even_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never:
        def is_completed(self) -> bool:
            return False

    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: Never())
    words: list[Any] = []
    message = r"^Ray of node 1 ended with exit code 0: see .*log"
    lasting = replace(start(tmp_path), lasts=True)
    with of(0, words, tmp_path).beside([lasting]), pytest.raises(TransientError, match=message):
        of(1, words, tmp_path).follow()
