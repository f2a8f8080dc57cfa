"""SLURM of two nodes on loopback, on one machine: Debian's munged, slurmctld and slurmd, without systemd, accounts and a GPU's driver."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tests.waiting import wait_until

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue")
SETTINGS = Path("/etc/slurm")  # SLURM_CONF does not reach the jobs of Snakemake's executor
NODES = ("n1", "n2")
GPUS = 4  # of each node: character devices that no driver answers for
NVIDIA = 195  # their major number
LEAST_CORES = 4  # that SLURM takes the machine to have: a group may ask for three

CONF = """\
ClusterName=dagrpo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=2,batch_sched_delay=1
GresTypes=gpu
ReturnToService=2
MpiDefault=none
MinJobAge=7200
KillWait=10
NodeName=DEFAULT CPUs={cores} RealMemory={memory} State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=16818 Gres=gpu:{gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=16819 Gres=gpu:{gpus}
PartitionName=cpu Nodes=n1 Default=YES MaxTime=14-0 State=UP
PartitionName=gpu Nodes=n1 MaxTime=14-0 State=UP
PartitionName=both Nodes=n1,n2 MaxTime=14-0 State=UP
"""


def what_is_missing() -> str:
    """Return why no SLURM can be started here; "" if one can."""
    if os.geteuid() != 0:
        return "only root starts munged, slurmctld and slurmd"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install munge slurmctld slurmd slurm-client"
    if (SETTINGS / "slurm.conf").exists():
        return f"{SETTINGS}/slurm.conf is there: this machine belongs to another cluster"
    return ""


@contextmanager
def started(folder: Path) -> Iterator[None]:
    """Run SLURM with its state in `folder` as long as the context is open."""
    _start_munge()
    for name in ("ctld", *NODES):
        (folder / name).mkdir(parents=True)
    for number in range(2 * GPUS):
        os.mknod(folder / f"nvidia{number}", 0o20666, os.makedev(NVIDIA, number))
    host = socket.gethostname().partition(".")[0]
    cores, memory = max(LEAST_CORES, os.cpu_count() or 1), psutil.virtual_memory().total // 2**20 - 500
    settings = {
        "slurm.conf": CONF.format(folder=folder, host=host, cores=cores, memory=memory, gpus=GPUS),
        "gres.conf": f"NodeName=n1 Name=gpu File={folder}/nvidia[0-{GPUS - 1}] Flags=nvidia_gpu_env\n"
        f"NodeName=n2 Name=gpu File={folder}/nvidia[{GPUS}-{2 * GPUS - 1}] Flags=nvidia_gpu_env\n",
    }
    SETTINGS.mkdir(exist_ok=True)
    for name, text in settings.items():
        (SETTINGS / name).write_text(text)
    try:
        for daemon in (("slurmctld",), *(("slurmd", "-N", node) for node in NODES)):
            subprocess.run(daemon, check=True)
        _wait_until_idle()
        yield
    finally:
        subprocess.run(["scancel", "--user=root"], check=False)
        for name in (*NODES, "slurmctld"):
            with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
                process = psutil.Process(int((folder / f"{name}.pid").read_text()))
                process.terminate()
                process.wait(timeout=60)
        for name in settings:
            (SETTINGS / name).unlink()


def _start_munge() -> None:
    """Start munged unless it runs. It stays: other programs may use it by now."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    Path("/run/munge").mkdir(exist_ok=True)
    for folder in ("/run/munge", "/var/lib/munge", "/var/log/munge"):
        shutil.chown(folder, "munge", "munge")
    subprocess.run(["setpriv", "--reuid=munge", "--regid=munge", "--init-groups", "munged"], check=True)


def _wait_until_idle() -> None:
    asked = ("sinfo", "--noheader", "--partition=both", "--format=%D %T")
    wait_until(lambda: shown(*asked).split() == [f"{len(NODES)}", "idle"])


def shown(*command: str) -> str:
    """Return what a command of SLURM prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def jobs_of(stage: str, *, states: str = "all") -> list[str]:
    """List the numbers of the jobs of a stage, the oldest first."""
    lines = shown("squeue", "--noheader", f"--states={states}", "--format=%i|%k").splitlines()
    numbers = [
        int(number) for number, _, comment in (line.partition("|") for line in lines) if f"rule_{stage}_" in comment
    ]
    return [str(number) for number in sorted(numbers)]
