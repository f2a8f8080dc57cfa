"""Checks of installed software, credentials, and the project's folder."""

import getpass
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import httpx
from huggingface_hub import constants, get_token

from dagrpo.cli.doctor import programs
from dagrpo.cli.doctor.finding import Finding, check
from dagrpo.config.project import REMEDY, without_snakefile
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo.utils.environment import version_of
from dagrpo.utils.hub import endpoint

NEEDED = ("torch", "sglang", "transformers", "snakemake", "dvc", "mlflow", "pyarrow")
SETUP = "make setup"
LOCKS = ("requirements/cpu.lock", "requirements/gpu.lock")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
# Snakemake's SLURM plug-in runs it as it is imported, on each start of Snakemake.
WHICH = "make setup puts one in .venv/bin, which must be on PATH; else install the package which (Debian: debianutils)"
MOST_NAMED = 3
INTERPRETER = "code_interpreter"  # the tool that runs programs
SECONDS = 10.0
VARIABLES = {
    "MLFLOW_TRACKING_URI": "an MLflow server; without one, history is kept in mlflow.db",
    "MLFLOW_TRACKING_TOKEN": "for an MLflow server that asks for one",
    "AWS_ACCESS_KEY_ID": "for a DVC remote on S3",
    "GOOGLE_APPLICATION_CREDENTIALS": "for a DVC remote on Google Cloud",
}


def findings() -> Iterator[Finding]:
    """Yield all findings, in seconds; the packages are not imported."""
    yield _python()
    yield from map(_package, NEEDED)
    yield from _lock()
    yield programs.program("git")
    yield programs.program("which", WHICH)
    yield _user()
    yield from _project()


def _python() -> Finding:
    detail = f"{platform.python_version()} in {sys.prefix}"
    remedy = "set the project up with Python 3.11, 3.12 or 3.13: `rm -rf .venv`, then `make setup`"
    return check("Python", programs.fits(), detail, detail, remedy)


def _package(name: str) -> Finding:
    version = version_of(name)
    return check(name, version is not None, str(version), "not installed", SETUP)


def _lock() -> Iterator[Finding]:
    """Check that the installed packages match one of the locks; yield nothing without a lock."""
    compared = [(path, _differing(Path(path))) for path in LOCKS if Path(path).is_file()]
    if not compared:
        return
    path, differing = min(compared, key=lambda each: len(each[1]))
    named = ", ".join(differing[:MOST_NAMED])
    more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
    yield check("versions", not differing, f"as in {path}", f"{named}{more} not as in {path}", SETUP, needed=False)


def _differing(lock: Path) -> list[str]:
    installed = {_plain(each.name): each.version for each in distributions() if each.name}
    pinned = PINNED.findall(lock.read_text(encoding="utf-8", errors="replace"))
    return [f"{name} {version}" for name, version in pinned if not _is(installed.get(_plain(name)), version)]


def _is(installed: str | None, pinned: str) -> bool:
    """Return True if versions match; a local version such as 2.13.0+cpu also matches the version before the plus."""
    return installed is not None and pinned in {installed, installed.partition("+")[0]}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _user() -> Finding:
    """Check that this user's id has a name and a home, without which dvc ends with an error. Snakemake's runs do without."""
    name, lacks = "", []
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        lacks.append("name")
    try:
        Path.home()
    except RuntimeError:
        lacks.append("home")
    fault = f"the user id {os.getuid()} has no {' and no '.join(lacks)}: dvc ends with an unexpected error"
    return check("user", not lacks, name, fault, "export LOGNAME=NAME HOME=FOLDER", needed=False)


def _project() -> Iterator[Finding]:
    """Yield findings on the folder's own files; without a Snakefile, only that."""
    if fault := without_snakefile():
        yield check("project", False, "", fault, REMEDY)
        return
    yield _params()
    yield check("DVC", Path(".dvc/config").is_file(), "initialised", "not initialised", "dvc init", needed=False)


def needs_isolation() -> bool:
    """Return True if the experiment of params.yaml runs programs of the policy in dagrpo's sandboxes."""
    from dagrpo.config.schema import read_params
    from dagrpo.data.task import get_task
    from dagrpo.tools import config_for

    try:
        params = read_params(Path("params.yaml"))
        offers = any(INTERPRETER in get_task(name).tools for name in params.experiment.tasks)
    except UserError:  # reported in a separate line
        return False
    return offers and getattr(config_for(INTERPRETER, params.rollout.tools), "sandbox_fusion", None) is None


def _params() -> Finding:
    from dagrpo.config.schema import read_params

    try:
        params = read_params(Path("params.yaml"))
    except UserError as error:
        return check("params.yaml", False, "", str(error).splitlines()[0], "dagrpo use arithmetic_tiny")
    return Finding(name="params.yaml", detail=f"experiment {params.experiment.name}")


def credentials(*, online: bool) -> Iterator[Finding]:
    """Yield each credential; with `online` also the hub's answer."""
    remedy = "for gated models: `hf auth login`, or set HF_TOKEN"
    yield check("HF_TOKEN", get_token() is not None, "present", "not set", remedy, needed=False)
    for name, purpose in VARIABLES.items():
        yield check(name, bool(os.environ.get(name)), "present", "not set", purpose, needed=False)
    if online:
        yield _hub()


def _hub() -> Finding:
    """Check that the hub answers; a refusal counts as an answer."""
    try:
        detail, answers = f"{endpoint()} answers {httpx.head(constants.ENDPOINT, timeout=SECONDS).status_code}", True
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        detail, answers = redacted(f"{endpoint()} cannot be reached ({type(error).__name__})"), False
    remedy = (
        "check the network; behind a proxy set HTTPS_PROXY; or set HF_ENDPOINT to a mirror, or data.mirror to copies"
    )
    return check("hub", answers, detail, detail, remedy)
