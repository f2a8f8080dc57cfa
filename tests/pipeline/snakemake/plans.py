"""Run in a clone: `python plans.py PARAMS_FOLDER`. Of each params.yaml of a folder, how many jobs of each rule its target needs."""

import json
import sys
from collections import Counter
from pathlib import Path

from dagrpo.pipeline.snakemake.configuration import PARAMS
from dagrpo.pipeline.snakemake.dag import planned_jobs


def planned(path: Path) -> Counter[str]:
    """The numbers of jobs by rule."""
    PARAMS.write_text(path.read_text())
    return Counter(job.rule for job in planned_jobs(Path.cwd(), {}))


if __name__ == "__main__":
    json.dump({path.stem: planned(path) for path in sorted(Path(sys.argv[1]).glob("*.yaml"))}, sys.stdout)
