"""What makes a GPU compute the same bits again. On a CPU this tests that it is switched on, not what it does."""

import os
from collections.abc import Iterator

import pytest
import torch

from dagrpo.determinism import FIXED, WORKSPACE, compute_deterministically, explained
from dagrpo.errors import UserError


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


def test_a_workspace_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    compute_deterministically(True)
    assert os.environ[WORKSPACE] == ":16:8"


def test_whoever_asks_for_nothing_gets_the_fastest() -> None:
    compute_deterministically(False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert WORKSPACE not in os.environ


def test_new_memory_is_not_filled_before_it_is_written() -> None:
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    compute_deterministically(True)
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_an_operation_without_a_deterministic_form_is_named_with_the_remedy() -> None:
    words = "histc_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
    with (
        pytest.raises(UserError, match=r"and histc_cuda has no deterministic form on this device: set it to false"),
        explained(),
    ):
        raise RuntimeError(words)


def test_any_other_error_stays_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="else"), explained():
        raise RuntimeError("something else")
