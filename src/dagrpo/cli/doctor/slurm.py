"""Checks of what jobs in SLURM need."""

import shutil
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from dagrpo.cli.doctor.finding import Finding, check
from dagrpo.utils import slurm

PLUGIN = "snakemake_executor_plugin_slurm"
PROGRAMS = ("sbatch", "squeue", "srun", "scancel")
_check = partial(check, needed=False)
LEAST_AGE = 120  # seconds: Snakemake may ask less often than every minute
OF_THE_CLUSTER = "ask who runs the cluster; on Debian: apt-get install slurm-client munge"


def findings() -> Iterator[Finding]:
    """Yield a line for each need of `snakemake --profile profiles/slurm`; a single line where SLURM is not installed."""
    programs = [name for name in PROGRAMS if shutil.which(name)]
    if not programs:
        yield _check("SLURM", False, "", "not installed: jobs run here", "see docs/cluster.md")
        return
    yield _check(
        "SLURM: plug-in", find_spec(PLUGIN) is not None, PLUGIN, "Snakemake's executor is not installed", "make setup"
    )
    missing = ", ".join(name for name in PROGRAMS if name not in programs)
    yield _check("SLURM: programs", not missing, ", ".join(programs), f"not on PATH: {missing}", OF_THE_CLUSTER)
    configuration = slurm.configuration()
    if configuration is None:
        remedy = "put slurm.conf in /etc/slurm (SLURM_CONF does not reach the jobs), and start munge"
        yield _check("SLURM: controller", False, "", "slurmctld does not answer", remedy)
        return
    yield _munge(configuration.get("AuthType", ""))
    yield _ended_jobs(configuration)
    fault = "no partition has any: stages run on CPUs"
    yield _check("SLURM: GPUs", slurm.has_gpus() is True, "a partition has some", fault, "gres.conf")


def _munge(authentication: str) -> Finding:
    """Check that munge answers, where SLURM uses it."""
    if authentication != "auth/munge":
        return Finding(name="SLURM: munge", detail=f"not needed: {authentication}")
    works = any(Path(folder, "munge/munge.socket.2").exists() for folder in ("/run", "/var/run"))
    remedy = "start munge, with the cluster's key"
    return _check("SLURM: munge", works, "munged runs", "munged does not run here", remedy)


def _ended_jobs(configuration: dict[str, str]) -> Finding:
    """Check that SLURM tells Snakemake that a job has ended: by squeue, or by its accounts."""
    age = configuration.get("MinJobAge", "0").split()[0]
    if slurm.has_accounting():
        return Finding(name="SLURM: ended jobs", detail=f"sacct knows them, and squeue for {age} s")
    fault = f"squeue forgets them after {age} s, and there are no accounts"
    remedy = f"MinJobAge={LEAST_AGE} or more in slurm.conf"
    return _check("SLURM: ended jobs", int(age) >= LEAST_AGE, f"squeue knows them for {age} s", fault, remedy)
