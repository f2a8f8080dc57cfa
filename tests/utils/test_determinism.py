"""What makes a GPU compute the same bits again. On a CPU this tests that it is switched on, not what it does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dagrpo.core.errors import UserError
from dagrpo.utils.determinism import FIXED, WORKSPACE, compute_deterministically, explained
from dagrpo.utils.distributed import RENDEZVOUS, process_group


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]  # torch's default


def test_torch_is_strict_whatever_the_device_since_attention_only_then_adds_up_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compute_deterministically(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ[WORKSPACE] == FIXED


def test_in_deterministic_runs_nccl_adds_up_in_one_order_unless_the_user_has_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two of its processes, on made-up GPUs: what NCCL finds in its environment when its communicators are made."""
    seen: list[tuple[str | None, str | None]] = []
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        RENDEZVOUS: str(tmp_path / "store"),
        "NCCL_PROTO": "LL",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_ALGO", "")
    monkeypatch.delenv("NCCL_ALGO")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    found = lambda *_, **__: seen.append((os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")))  # noqa: E731
    monkeypatch.setattr(dist, "init_process_group", found)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    for deterministic in (False, True):
        with process_group(torch.get_num_threads(), deterministic=deterministic):
            pass
    assert seen == [(None, "LL"), ("Ring", "LL")]


def test_an_operation_without_a_deterministic_form_is_named_with_the_remedy() -> None:
    words = "histc_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
    with (
        pytest.raises(UserError, match=r"and histc_cuda has no deterministic form on this device: set it to false"),
        explained(),
    ):
        raise RuntimeError(words)
