"""Checks of what jobs in SLURM need."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dagrpo.cli.doctor.finding import Finding
from dagrpo.utils import slurm

PLUGIN = "snakemake_executor_plugin_slurm"
PROGRAMS = ("sbatch", "squeue", "srun", "scancel")
LEAST_AGE = 120  # seconds: Snakemake may ask less often than every minute
OF_THE_CLUSTER = "ask who runs the cluster; on Debian: apt-get install slurm-client munge"


def findings() -> Iterator[Finding]:
    """Yield a line for each need of `snakemake --profile profiles/slurm`; a single line where SLURM is not installed."""
    programs = [name for name in PROGRAMS if shutil.which(name)]
    if not programs:
        yield Finding(
            name="SLURM",
            detail="not installed: jobs run here",
            is_there=False,
            is_needed=False,
            remedy="see docs/cluster.md",
        )
        return
    yield _line(
        "SLURM: plug-in", PLUGIN, "Snakemake's executor is not installed", "make setup", find_spec(PLUGIN) is not None
    )
    missing = ", ".join(name for name in PROGRAMS if name not in programs)
    yield _line("SLURM: programs", ", ".join(programs), f"not on PATH: {missing}", OF_THE_CLUSTER, not missing)
    configuration = slurm.configuration()
    if configuration is None:
        remedy = "put slurm.conf in /etc/slurm (SLURM_CONF does not reach the jobs), and start munge"
        yield _line("SLURM: controller", "", "slurmctld does not answer", remedy, False)
        return
    yield _munge(configuration.get("AuthType", ""))
    yield _ended_jobs(configuration)
    has_gpus = slurm.has_gpus() is True
    yield _line(
        "SLURM: GPUs", "a partition has some", "no partition has any: stages run on CPUs", "gres.conf", has_gpus
    )


def _munge(authentication: str) -> Finding:
    """Check that munge answers, where SLURM uses it."""
    if authentication != "auth/munge":
        return Finding(name="SLURM: munge", detail=f"not needed: {authentication}")
    works = any(Path(folder, "munge/munge.socket.2").exists() for folder in ("/run", "/var/run"))
    return _line(
        "SLURM: munge", "munged runs", "munged does not run here", "start munge, with the cluster's key", works
    )


def _ended_jobs(configuration: dict[str, str]) -> Finding:
    """Check that SLURM tells Snakemake that a job has ended: by squeue, or by its accounts."""
    age = configuration.get("MinJobAge", "0").split()[0]
    if slurm.has_accounting():
        return Finding(name="SLURM: ended jobs", detail=f"sacct knows them, and squeue for {age} s")
    fault = f"squeue forgets them after {age} s, and there are no accounts"
    remedy = f"MinJobAge={LEAST_AGE} or more in slurm.conf"
    return _line("SLURM: ended jobs", f"squeue knows them for {age} s", fault, remedy, int(age) >= LEAST_AGE)


def _line(name: str, detail: str, fault: str, remedy: str, works: bool) -> Finding:
    return Finding(name=name, detail=detail if works else fault, is_there=works, is_needed=False, remedy=remedy)
