"""A node of a Ray on two, without verl: `python -m dagrpo.pipeline.launch ... ray_runs.py FOLDER PYTHON`, with the Python of Ray.

The first writes what Ray has, and waits for the file `enough`; then each writes which of Ray's processes are left.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from dagrpo.utils.child_variables import alone
from dagrpo_foreign.nodes import nodes_of
from dagrpo_verl.cluster import Cluster, access, ray_over

ASKED = """
import json, os, ray, socket, sys
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_gpus=2)
def seen():
    return [socket.gethostname(), os.environ["GIVEN"], "RANK" in os.environ]

each = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
tasks = sorted(ray.get([seen.options(scheduling_strategy=one).remote() for one in each]))
nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes())
print(json.dumps({"nodes": nodes, "gpus": ray.cluster_resources()["GPU"], "tasks": tasks}))
"""


def main(folder: Path, python: str) -> None:
    """Take part as the node that the launcher says."""
    with nodes_of(2, folder) as nodes:
        if nodes.world.is_rank_zero:
            token = access(folder)
            cluster = Cluster(
                python=python,
                gpus=2,
                cores=1,
                patience=100.0,
                environment={**token, "GIVEN": "to all"},
                logs=("node_0.log", "node_1.log"),
                folder=folder,
            )
            with ray_over(nodes, cluster) as place:
                asked = [python, "-c", ASKED, place]
                found = subprocess.run(asked, env={**alone(), **token}, stdout=subprocess.PIPE, text=True, check=True)
                anyone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
                stranger = subprocess.run(asked, env={**anyone, "RAY_AUTH_MODE": "disabled"}, check=False, timeout=120)
                answer = {**json.loads(found.stdout.splitlines()[-1]), "stranger": stranger.returncode}
                (folder / "found.part").write_text(json.dumps(answer))
                (folder / "found.part").rename(folder / "found.json")
                while not (folder / "enough").exists():
                    time.sleep(0.1)
        else:
            nodes.follow()
    left = [
        " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    ]  # of one that has ended: None
    of_ray = [line for line in left if "ray" in line and "ray_runs.py" not in line]
    (folder / f"left_{nodes.world.rank}.json").write_text(json.dumps(of_ray))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
