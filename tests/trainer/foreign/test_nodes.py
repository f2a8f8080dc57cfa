"""What the nodes beside the first run: what a file says that only the user reads, never the network."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dagrpo.core.errors import TransientError
from dagrpo.trainer.foreign import nodes
from dagrpo.trainer.foreign.nodes import STARTS, Nodes, Start
from dagrpo.utils.distributed import World


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
