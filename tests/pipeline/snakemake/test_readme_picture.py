"""The picture of the DAG in docs/stages.md is the DAG."""

import re
from pathlib import Path

import networkx

from dagrpo.config.schema import Params
from dagrpo.pipeline.dag import planned_jobs

ROOT = Path(__file__).parents[3]


def test_the_picture_has_the_stages_and_what_each_needs() -> None:
    """Without what follows from the rest: an arrow from A to C where A leads to B and B to C."""
    jobs = planned_jobs(Params(), "e")
    makers = {path: job.stage for job in jobs for path in job.files}
    read = {(job.stage, path) for job in jobs for paths in job.inputs.values() for path in paths}
    needed = networkx.DiGraph((makers[path], stage) for stage, path in read if path in makers)
    arrows = re.findall(r"^    (\w+) --> (\w+)$", (ROOT / "docs/stages.md").read_text(), re.MULTILINE)
    assert sorted(arrows) == sorted(networkx.transitive_reduction(needed).edges)
