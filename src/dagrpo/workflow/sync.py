"""After `dvc pull`, `dvc checkout` or a restored stage: have Snakemake trust what DVC vouches for."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
from dvc.repo import Repo

from dagrpo.files import read_json


def vouched_outputs() -> list[str]:
    """The outs of stages that DVC calls clean and whose whole upstream is clean, sorted."""
    with Repo(".") as repo:
        changed = set(repo.status())
        graph = repo.index.graph  # edges: stage -> what it depends on
        stages = list(repo.index.stages)
        dirty = {stage for stage in stages if stage.addressing in changed}
        dirty |= {stage for stage in stages if not dirty.isdisjoint(nx.descendants(graph, stage))}
        return sorted(str(out.def_path) for stage in stages if stage not in dirty for out in stage.outs)


def files_of(outs: list[str]) -> Iterator[str]:
    """The files that Snakemake knows inside those outs: what each provenance.json there lists, and itself."""
    for out in map(Path, outs):
        records = (
            out.rglob("*provenance.json") if out.is_dir() else [out] if out.name.endswith("provenance.json") else []
        )
        for record in sorted(records):
            yield str(record)
            yield from sorted(read_json(record)["outputs"])


def sync() -> None:
    """Touch them in dependency order, so that their times and Snakemake's records agree; nothing is executed."""
    files = list(files_of(vouched_outputs()))
    if files:
        subprocess.run(["snakemake", "--quiet", "all", "--cores", "1", "--touch", "--", *files], check=True)
    print(f"Snakemake now trusts {len(files)} files that DVC vouches for.")
