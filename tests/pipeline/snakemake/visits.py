"""What the engines want in each experiment of each order: `python -m tests.pipeline.snakemake.visits ORDERS.json PARAMS_FOLDER`.

Runs in a clone. DVC is asked in the first order: what it says does not depend on what was visited before, and it takes seconds.
"""

import json
import sys
from pathlib import Path

from dvc.repo import Repo
from tests.pipeline.snakemake.planning import opened

from dagrpo.config.schema import read_params
from dagrpo.pipeline.dvc.file import keep_current
from dagrpo.pipeline.override_runs import PARAMS


def wanted(text: str, *, ask_dvc: bool) -> dict[str, list[str]]:
    """The jobs that Snakemake would run for a params.yaml, and the stages that DVC calls changed."""
    PARAMS.write_text(text)
    keep_current(read_params(PARAMS), overridden=False)
    with opened(Path.cwd(), {}) as workflow:
        jobs = [str(job) for job in workflow.dag.needrun_jobs() if job.output]
    if not ask_dvc:
        return {"snakemake": jobs, "dvc": []}
    with Repo(".") as repo:
        return {"snakemake": jobs, "dvc": sorted(repo.status())}


if __name__ == "__main__":
    orders, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    texts = {name: (folder / f"{name}.yaml").read_text() for name in orders[0]}
    visits = [wanted(texts[name], ask_dvc=number == 0) for number, order in enumerate(orders) for name in order]
    json.dump(visits, sys.stdout)
