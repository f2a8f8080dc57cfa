"""Where no program can be isolated, the refusal says what to do."""

import os
from pathlib import Path

import pytest

from dagrpo_sandbox import SandboxUnavailable, bubblewrap
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
