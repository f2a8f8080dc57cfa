"""The picture of the DAG in the README is the DAG."""

import re
from pathlib import Path

import networkx

from dagrpo.pipeline.dvc.file import PROBE
from dagrpo.pipeline.snakemake.dag import planned_jobs

ROOT = Path(__file__).parents[3]


def test_the_picture_in_the_readme_has_the_stages_and_what_each_needs() -> None:
    """Without what follows from the rest: an arrow from A to C where A leads to B and B to C."""
    jobs = planned_jobs(ROOT, PROBE)
    makers = {path: job.rule for job in jobs for paths in job.outputs.values() for path in paths}
    read = {(job.rule, path) for job in jobs for paths in job.inputs.values() for path in paths}
    needed = networkx.DiGraph((makers[path], rule) for rule, path in read if path in makers and makers[path] != rule)
    drawn = re.findall(r"^    (\w+) --> (\w+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(drawn) == sorted(networkx.transitive_reduction(needed).edges)
