"""Hosts on one machine: namespaces with a network, a name and processes of their own, and one file system."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagrpo.utils.child_variables import QUIET

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
INSIDE = 'hostname "$1"; shift; exec "$@"'
LAUNCH = ("-m", "dagrpo.pipeline.launch")
PATIENCE = 120  # seconds until both are there
SECONDS = 300  # that any run may take


@dataclass(slots=True)
class Host:
    """A host with an address in a network that only these hosts have."""

    name: str
    namespace: str
    interface: str
    address: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, folder: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a folder; its output, errors among it, can be read from its stdout."""
        own = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        inside = ("ip", "netns", "exec", self.namespace, *own)
        process = subprocess.Popen(
            [*inside, "sh", "-c", INSIDE, "sh", self.name, *command],
            cwd=folder,
            env=os.environ | QUIET | {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def python(self, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start this interpreter, as `start` does."""
        return self.start(folder, sys.executable, *arguments, **environment)

    def listening(self) -> set[str]:
        """Return the addresses at which anything here listens, by TCP."""
        command = ("ip", "netns", "exec", self.namespace, "ss", "--no-header", "--listening", "--tcp", "--numeric")
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines}

    def kill(self) -> None:
        """Kill everything that was started here, as if the power went."""
        for process in self.started:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)  # unshare's child, the first process of its namespace, dies with it
            process.wait()


def what_is_missing() -> str:
    """Return why no hosts can be made here; "" if they can."""
    if os.geteuid() != 0:
        return "only root makes namespaces of networks"
    missing = [name for name in ("ip", "ss", "unshare", "hostname") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not installed"
    probe = ("unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "true")
    made = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no namespaces can be made: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Yield two hosts that reach each other and nobody else; skip the test where none can be made. The first has the bridge."""
    if missing := what_is_missing():
        pytest.skip(missing)
    own = os.getpid()
    hosts = [
        Host(name, f"dagrpo-{name}-{own}", f"v{name}{own}", f"10.77.0.{number}") for number, name in enumerate("ab", 1)
    ]
    first = hosts[0]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        _ip("-n", first.namespace, "link", "add", first.interface, "type", "bridge")
        for host in hosts[1:]:
            port = f"p{host.interface}"
            ends = ("name", port, "netns", first.namespace, "type", "veth", "peer", "name", host.interface)
            _ip("link", "add", *ends, "netns", host.namespace)
            _ip("-n", first.namespace, "link", "set", port, "master", first.interface, "up")
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
            for interface in ("lo", host.interface):
                _ip("-n", host.namespace, "link", "set", interface, "up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.kill()
            subprocess.run(["ip", "netns", "delete", host.namespace], check=False)


def launched(
    hosts: Sequence[Host], folder: Path, command: list[str], processes: int = 1, **environment: str
) -> list[subprocess.Popen[str]]:
    """Start a script on all hosts, as a training on as many nodes."""
    return [
        host.python(folder, *launch_of(hosts[0], number, len(hosts)), str(processes), *command, **environment)
        for number, host in enumerate(hosts)
    ]


def launch_of(first: Host, number: int, nodes: int, *more: str) -> tuple[str, ...]:
    """Return the words that start the ranks of node `number`, without their count and script."""
    place = ("--nodes", str(nodes), "--node", str(number), "--address", f"{first.address}:29500")
    return (*LAUNCH, *place, "--timeout", str(PATIENCE), *more)


def wait_for(path: Path, process: subprocess.Popen[str] | None = None) -> None:
    """Return when a file is there. `process`: which is to write it."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
