"""Every rank returns what it gathered for the engine before a server on its GPU takes memory for its cache."""

from pathlib import Path

import pytest
import torch
from tests.trainer import runs
from tests.trainer.sync import cache_ranks
from tests.trainer.test_several_processes import SHAPE

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.models.fresh import make_fresh

FREED = ["rank 0 frees", "rank 1 frees"]
EVENTS = {
    "folder": [*FREED, "server takes weights", "server takes kv_cache"],
    "tensors": ["server takes weights", *FREED, "server takes kv_cache"],
}


@pytest.mark.parametrize("road", [*EVENTS])
def test_both_ranks_return_gathered_weights_before_a_server_takes_its_cache_back(road: str, tmp_path: Path) -> None:
    make_fresh(tmp_path / "source", SHAPE, torch.float32)
    convert(tmp_path / "source", tmp_path / "initial", Checkpoint.model_validate({"format": "dcp"}))
    runs.launch(2, cache_ranks.__file__, tmp_path / "initial", tmp_path, road)
    assert (tmp_path / "events").read_text().splitlines() == EVENTS[road]
