"""Where a limit does not hold, nothing is run."""

import asyncio
import os
from pathlib import Path

import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo_sandbox import (
    Limits,
    SandboxPool,
    SandboxUnavailable,
    bubblewrap,
    run_cold,
    sandbox,
    seccomp,
)
from dagrpo_sandbox.bubblewrap import find_installation, why_it_fails

INSIDE = bubblewrap.INSIDE.read_text()
ALLOW_ALL = seccomp._instruction(seccomp.RETURN, seccomp.ALLOW)


@pytest.fixture(autouse=True)
def _unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_proved", set())


def _refusal() -> str:
    async def run() -> None:
        async with SandboxPool(Limits(), size=1):
            pass

    with pytest.raises(SandboxUnavailable) as refusal:
        asyncio.run(run())
    return str(refusal.value)


def test_limits_that_hold_are_proved_once() -> None:
    assert asyncio.run(run_cold("print(1)")).stdout == "1\n"
    assert len(sandbox._proved) == 1


@pytest.mark.parametrize(
    ("name", "limit"), [("AS", "memory of one process"), ("NPROC", "processes"), ("NOFILE", "open files")]
)
def test_a_limit_of_processes_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str, limit: str) -> None:
    limits = bubblewrap._resource_limits
    monkeypatch.setattr(
        bubblewrap,
        "_resource_limits",
        lambda given: {key: value for key, value in limits(given).items() if key != name},
    )
    assert f"does not limit {limit} on this machine" in _refusal()


@pytest.mark.parametrize(
    ("line", "without", "limit"),
    [
        ("held += bytes_of(process)", "0", "memory of all processes together, memory of sessions"),
        ("again, worker.memory.held", "again, 0", "memory of sessions"),
        ("if moved > shown", "if False", "output"),
    ],
)
def test_what_is_not_limited_from_inside_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, without: str, limit: str
) -> None:
    changed = tmp_path / "inside.py"
    assert line in INSIDE
    changed.write_text(INSIDE.replace(line, without))
    monkeypatch.setattr(bubblewrap, "INSIDE", changed)
    program, status, _ = sandbox.EXCESSES[sandbox.MEMORY]
    monkeypatch.setitem(sandbox.EXCESSES, sandbox.MEMORY, (program, status, 1.0))
    assert f"does not limit {limit} on" in _refusal()


def test_a_filter_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "bpf", lambda: ALLOW_ALL)
    assert "does not limit network, system calls on" in _refusal()
    with pytest.raises(SandboxUnavailable, match="does not limit"):
        asyncio.run(run_cold("1"))


def test_a_sandbox_that_is_missing_fails_the_tests_of_a_machine_that_could_have_one() -> None:
    with pytest.raises(pytest.fail.Exception, match="but: no limit holds"):
        without_sandbox("no limit holds")


def test_without_bubblewrap_the_refusal_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
        find_installation()


def test_the_systems_bubblewrap_comes_before_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(bubblewrap, "_usable", lambda path: True)
    assert find_installation().bwrap == program


def test_a_folder_that_nobody_may_enter_is_of_no_use_to_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program = tmp_path / "closed" / "python"
    program.parent.mkdir(mode=0o700)
    program.write_text("")
    program.chmod(0o755)
    assert not bubblewrap._usable(program)


def test_forbidden_user_namespaces_are_named_with_their_sysctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "unprivileged_userns_clone"
    monkeypatch.setattr(bubblewrap, "FORBIDDING", {str(switch): "1"})
    message = "bwrap: No permissions to create new namespace"
    switch.write_text("1\n")
    assert "seccomp=unconfined" in why_it_fails(message)  # allowed: a container forbids it
    switch.write_text("0\n")
    assert "unprivileged_userns_clone=1`" in why_it_fails(message)
