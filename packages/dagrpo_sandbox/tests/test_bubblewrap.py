"""Where no program can be isolated, the refusal says what to do. And the filter of system calls, read instruction by instruction."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_sandbox import SandboxUnavailable, bubblewrap, seccomp
from dagrpo_sandbox.bubblewrap import find_installation, why_it_fails


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


def test_a_message_of_another_kind_is_passed_on() -> None:
    assert why_it_fails("bwrap: execvp /python: No such file\n").endswith("(bwrap: execvp /python: No such file)")


# --- the filter ------------------------------------------------------------------------------------------------------


def _judge(program: bytes, architecture: int, number: int, argument: int) -> int:
    """What the kernel's interpreter returns: classic BPF over struct seccomp_data."""
    data = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture, seccomp.FIRST_ARGUMENT: argument & 0xFFFFFFFF}
    instructions = [struct.unpack_from("<HBBI", program, start) for start in range(0, len(program), 8)]
    register, place = 0, 0
    while True:
        code, if_true, if_false, value = instructions[place]
        if code == seccomp.RETURN:
            return int(value)
        if code == seccomp.LOAD:
            register = data[value]
            place += 1
            continue
        tests = {
            seccomp.JUMP_EQUAL: register == value,
            seccomp.JUMP_GREATER_OR_EQUAL: register >= value,
            seccomp.JUMP_SET: bool(register & value),
        }
        place += 1 + (if_true if tests[code] else if_false)


@given(st.sampled_from(seccomp.MACHINES), st.integers(0, 600), st.integers(0, 2**64 - 1))
def test_the_filter_refuses_its_list_and_nothing_else(machine: str, number: int, argument: int) -> None:
    column = seccomp.MACHINES.index(machine)
    verdict = _judge(seccomp.bpf(machine), seccomp.AUDIT_ARCHITECTURES[machine], number, argument)
    low = argument & 0xFFFFFFFF
    if number in [numbers[column] for numbers in seccomp.REFUSED.values()]:
        expected = seccomp.REFUSE | errno.EPERM
    elif number == 435:
        expected = seccomp.REFUSE | errno.ENOSYS
    elif (number == seccomp.CLONE[column] and low & seccomp.NEW_NAMESPACES) or (
        number == seccomp.PRLIMIT[column] and low
    ):
        expected = seccomp.REFUSE | errno.EPERM
    else:
        expected = seccomp.ALLOW
    assert verdict == expected


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_another_architecture_and_another_abi_end_the_process(machine: str) -> None:
    program = seccomp.bpf(machine)
    assert _judge(program, 0x40000003, 1, 0) == seccomp.KILL_PROCESS  # i386
    assert _judge(program, seccomp.AUDIT_ARCHITECTURES[machine], seccomp.X32 | 1, 0) == seccomp.KILL_PROCESS


def test_a_machine_without_a_list_is_refused() -> None:
    with pytest.raises(KeyError):
        seccomp.bpf("riscv64")
