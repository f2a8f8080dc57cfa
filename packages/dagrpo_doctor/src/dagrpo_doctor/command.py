"""Command `dagrpo doctor`: it checks this machine, and changes nothing."""

import asyncio
import getpass
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import PARAMS, columns, print_json
from dagrpo.config.project import REMEDY, without_snakefile
from dagrpo.config.schema import read_params
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.redaction import redacted
from dagrpo.engine.sglang.toolkit import RUNTIME, library, with_cuda_runtime
from dagrpo.pipeline.planner import planner
from dagrpo.utils import slurm
from dagrpo.utils.console import plain_console
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.environment import version_of
from dagrpo_doctor import gpu_requirements as gpu
from dagrpo_doctor import gpus
from dagrpo_doctor.finding import GIBIBYTE, Finding, check, gib

STYLES = {"ok": "green", "missing": "bold red", "none": "yellow"}
LONGEST = 200
LEAST_MEMORY = 3 * GIBIBYTE  # of the smallest experiment
LEAST_DISK = 1 * GIBIBYTE
KERNELS = "sglang-kernel"
INTERPRETER = "code_interpreter"  # the tool that runs programs
SANDBOX_SECONDS, HUB_SECONDS = 20.0, 10.0
NEEDED = ("torch", "sglang", "transformers", "snakemake", "dvc", "mlflow", "pyarrow")
SETUP = "make setup"
LOCKS = ("requirements/cpu.lock", "requirements/gpu.lock")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
MOST_NAMED = 3
# Snakemake's SLURM plug-in runs it as it is imported, on each start of Snakemake.
WHICH = "make setup puts one in .venv/bin, which must be on PATH; else install the package which (Debian: debianutils)"
SLURM_PLUGIN = "snakemake_executor_plugin_slurm"
SLURM_PROGRAMS = ("sbatch", "squeue", "srun", "scancel")
LEAST_AGE = 120  # seconds: Snakemake may ask less often than every minute
OF_THE_CLUSTER = "ask who runs the cluster; on Debian: apt-get install slurm-client munge"
VARIABLES = {
    "MLFLOW_TRACKING_URI": "an MLflow server; without one, history is kept in mlflow.db",
    "MLFLOW_TRACKING_TOKEN": "for an MLflow server that asks for one",
    "AWS_ACCESS_KEY_ID": "for a DVC remote on S3",
    "GOOGLE_APPLICATION_CREDENTIALS": "for a DVC remote on Google Cloud",
}
advise = partial(check, needed=False)


def doctor(
    online: Annotated[bool, typer.Option("--online", help="also check that the hub answers")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: a list with an object per line")] = False,
) -> None:
    """Check this machine and suggest fixes; exit code 1 if a requirement of runs is missing."""
    findings = [*check_software(), *check_machine(), *check_credentials(online=online)]
    if as_json:
        print_json([asdict(each) | {"state": each.state} for each in findings])
    else:
        plain_console().print(_table(findings), soft_wrap=False)
    if any(each.is_trouble for each in findings):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    table = columns("", "", "")
    for each in findings:
        text = Text(one_line(each.detail, LONGEST))
        if not each.is_there:
            text.append(f"\n{each.remedy}", style="dim")
        table.add_row(Text(each.state, STYLES[each.state]), each.name, text)
    return table


def check_software() -> Iterator[Finding]:
    """Yield the findings on Python, packages, programs, the user and the folder; without a Snakefile, of the folder only that."""
    detail = f"{platform.python_version()} in {sys.prefix}"
    remedy = "set the project up with Python 3.11, 3.12 or 3.13: `rm -rf .venv`, then `make setup`"
    yield check("Python", gpu.fits(), detail, detail, remedy)
    for name in NEEDED:
        version = version_of(name)
        yield check(name, version is not None, str(version), "not installed", SETUP)
    yield from _lock()
    yield gpu.program("git")
    yield gpu.program("which", WHICH)
    yield _user()
    if fault := without_snakefile():
        yield check("project", False, "", fault, REMEDY)
        return
    yield _params()
    yield advise("DVC", Path(".dvc/config").is_file(), "initialised", "not initialised", "dvc init")


def _lock() -> Iterator[Finding]:
    """Check that the installed packages match one of the locks; yield nothing without a lock."""
    installed = {_plain(each.name): each.version for each in distributions() if each.name}
    compared = [(path, _differing(Path(path), installed)) for path in LOCKS if Path(path).is_file()]
    if not compared:
        return
    path, differing = min(compared, key=lambda each: len(each[1]))
    named = ", ".join(differing[:MOST_NAMED])
    more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
    yield advise("versions", not differing, f"as in {path}", f"{named}{more} not as in {path}", SETUP)


def _differing(lock: Path, installed: Mapping[str, str]) -> list[str]:
    """Return what a lock pins to another version; a local version such as 2.13.0+cpu matches the version before the plus."""
    pinned = PINNED.findall(lock.read_text(encoding="utf-8", errors="replace"))
    there = {name: installed.get(_plain(name), "") for name, _ in pinned}
    return [f"{name} {own}" for name, own in pinned if own not in {there[name], there[name].partition("+")[0]}]


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
    return advise("user", not lacks, name, fault, "export LOGNAME=NAME HOME=FOLDER")


def _params() -> Finding:
    try:
        return Finding(name="params.yaml", detail=f"experiment {read_params(PARAMS).experiment.name}")
    except UserError as error:
        return check("params.yaml", False, "", str(error).splitlines()[0], "dagrpo use arithmetic_tiny")


def check_machine() -> Iterator[Finding]:
    """Yield the findings on processors, memory, disk, GPUs and isolation, in seconds."""
    yield Finding(name="processors", detail=f"{len(os.sched_getaffinity(0))} that this process may use")
    memory = psutil.virtual_memory()
    detail = f"{gib(memory.available)} of {gib(memory.total)} free"
    remedy = f"end other programs: the smallest experiment takes {gib(LEAST_MEMORY)}"
    yield check("memory", memory.available >= LEAST_MEMORY, detail, detail, remedy)
    yield gpu.disk(Path.cwd(), needed_disk())
    yield gpu.shared_memory()
    yield gpu.cache(is_needed=False)  # runs of Snakemake take .state/cache
    yield from check_gpus()
    yield from check_slurm()
    yield check_isolation(is_needed=needs_isolation())


def needed_disk() -> int:
    """Return the bytes on disk of the experiment of params.yaml, as `dagrpo plan` says; LEAST_DISK where it says nothing."""
    try:
        plans = planner()
        return LEAST_DISK if plans is None else max(LEAST_DISK, plans.disk(read_params(PARAMS)))
    except UserError:  # no params.yaml, or a model that is not on this machine
        return LEAST_DISK


def check_gpus() -> Iterator[Finding]:
    """Yield the driver, each GPU, and the other needs of runs on it; a single line without a GPU."""
    devices = visible_devices()
    if not devices:
        remedy = "where there is one: install its driver, so that nvidia-smi lists it, then `make gpu`"
        yield advise("GPU", False, "", "everything runs on the CPU", remedy)
        return
    if cards := gpus.cards():
        yield from gpus.check_cards(cards)
    else:
        named = "as CUDA_VISIBLE_DEVICES or the driver names it"
        yield from (Finding(name=f"GPU {device}", detail=named) for device in devices)
    yield gpu.headers(is_needed=sys.prefix != sys.base_prefix)
    yield from gpu.compilers()
    if version_of(KERNELS) is None:  # only requirements/gpu.lock has them
        yield advise("packages for a GPU", False, "", "not installed: everything runs on the CPU", "make gpu")
        return
    runtime = library(RUNTIME, {"LD_LIBRARY_PATH": with_cuda_runtime(os.environ)})
    fault = f"no {RUNTIME}, which servers with release_memory load before torch"
    yield check("CUDA runtime", runtime is not None, str(runtime), fault, "make gpu")


def needs_isolation() -> bool:
    """Return True if the experiment of params.yaml runs programs of the policy in dagrpo's sandboxes."""
    from dagrpo.data.task import get_task

    try:
        params = read_params(PARAMS)
        return any(INTERPRETER in get_task(name).tools for name in params.experiment.tasks)
    except UserError:  # reported in a separate line
        return False


def check_isolation(*, is_needed: bool) -> Finding:
    """Check that programs of a policy can be run, by running one."""
    from dagrpo_sandbox import Limits, SandboxUnavailable, run_cold

    try:
        result = asyncio.run(run_cold("print(1)", Limits(seconds=SANDBOX_SECONDS)))
    except SandboxUnavailable as error:
        trouble, _, remedy = str(error).rpartition("; ")
        remedy = remedy if trouble else "apt-get install bubblewrap"
        return check("bubblewrap", False, "", trouble or str(error), remedy, needed=is_needed)
    works = result.status == "ok" and result.stdout == "1\n"
    detail, fault = f"isolates programs, {result.seconds:.1f} s for one", f"a program ended with {result.status}"
    return check("bubblewrap", works, detail, fault, "see docs/sandbox.md", needed=is_needed)


def check_slurm() -> Iterator[Finding]:
    """Yield a line for each need of `snakemake --profile profiles/slurm`; a single line where SLURM is not installed."""
    programs = [name for name in SLURM_PROGRAMS if shutil.which(name)]
    if not programs:
        yield advise("SLURM", False, "", "not installed: jobs run here", "see docs/cluster.md")
        return
    fault = "Snakemake's executor is not installed"
    yield advise("SLURM: plug-in", find_spec(SLURM_PLUGIN) is not None, SLURM_PLUGIN, fault, SETUP)
    missing = ", ".join(name for name in SLURM_PROGRAMS if name not in programs)
    yield advise("SLURM: programs", not missing, ", ".join(programs), f"not on PATH: {missing}", OF_THE_CLUSTER)
    configuration = slurm.configuration()
    if configuration is None:
        remedy = "put slurm.conf in /etc/slurm (SLURM_CONF does not reach the jobs), and start munge"
        yield advise("SLURM: controller", False, "", "slurmctld does not answer", remedy)
        return
    authentication, remedy = configuration.get("AuthType", ""), "start munge, with the cluster's key"
    if authentication == "auth/munge":
        works = any(Path(folder, "munge/munge.socket.2").exists() for folder in ("/run", "/var/run"))
        yield advise("SLURM: munge", works, "munged runs", "munged does not run here", remedy)
    else:
        yield Finding(name="SLURM: munge", detail=f"not needed: {authentication}")
    yield _ended_jobs(configuration.get("MinJobAge", "0").split()[0])
    fault = "no partition has any: stages run on CPUs"
    yield advise("SLURM: GPUs", slurm.has_gpus() is True, "a partition has some", fault, "gres.conf")


def _ended_jobs(age: str) -> Finding:
    """Check that SLURM tells Snakemake that a job has ended: by squeue, for `age` seconds, or by its accounts."""
    if slurm.has_accounting():
        return Finding(name="SLURM: ended jobs", detail=f"sacct knows them, and squeue for {age} s")
    fault = f"squeue forgets them after {age} s, and there are no accounts"
    remedy = f"MinJobAge={LEAST_AGE} or more in slurm.conf"
    return advise("SLURM: ended jobs", int(age) >= LEAST_AGE, f"squeue knows them for {age} s", fault, remedy)


def check_credentials(*, online: bool) -> Iterator[Finding]:
    """Yield each credential, as present or not; with `online` also whether the hub answers, for which a refusal counts."""
    import httpx
    from huggingface_hub import constants, get_token

    from dagrpo.utils.hub import endpoint

    remedy = "for gated models: `hf auth login`, or set HF_TOKEN"
    yield advise("HF_TOKEN", get_token() is not None, "present", "not set", remedy)
    for name, purpose in VARIABLES.items():
        yield advise(name, bool(os.environ.get(name)), "present", "not set", purpose)
    if not online:
        return
    try:
        status, fault = httpx.head(constants.ENDPOINT, timeout=HUB_SECONDS).status_code, ""
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        status, fault = None, redacted(f"{endpoint()} cannot be reached ({type(error).__name__})")
    remedy = (
        "check the network; behind a proxy set HTTPS_PROXY; or set HF_ENDPOINT to a mirror, or data.mirror to copies"
    )
    yield check("hub", not fault, f"{endpoint()} answers {status}", fault, remedy)
