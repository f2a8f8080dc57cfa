"""Program that waits until Ray has all nodes.

`python cluster_check.py JOB`, with verl's Python. Writes to the file `reply` the numbers of the nodes that are missing in the end.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.5


def missing(job: dict[str, Any]) -> list[int]:
    """Return the numbers of the nodes that are not there in time."""
    import ray

    deadline = time.monotonic() + job["seconds"]
    ray.init(address=job["address"], log_to_driver=False)
    while True:
        left = absent(job["nodes"], [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(SECONDS_BETWEEN_LOOKS)


def absent(addresses: Sequence[str], there: Sequence[str]) -> list[int]:
    """Return the numbers of the nodes that are not there. Several on one machine have one address."""
    return [
        number
        for number, address in enumerate(addresses)
        if addresses[: number + 1].count(address) > there.count(address)
    ]


def main(path: Path) -> None:
    """Write the reply to a job."""
    job = json.loads(path.read_text())
    Path(job["reply"]).write_text(json.dumps({"missing": missing(job)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
