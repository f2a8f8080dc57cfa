"""Any number of experiments are up to date at once: finished in any order, visited in any order, stored once."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import TINY

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
GSPO = {"name": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "twin": {},  # in nothing but the name
    "other-data.model": {"data": {"arithmetic": {"train": 41}}, "model": {"fresh": {"num_hidden_layers": 1}}},
    "gspo": {"algorithm": {"loss": GSPO}},
}


@pytest.fixture(scope="module")
def several(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """(a clone in which the experiments have been run to their ends in a random order, the params.yaml of each)"""
    folder = clones.copied(run_by_snakemake, tmp_path_factory.mktemp("several") / "clone")
    texts = {}
    for name, difference in DIFFERENCES.items():
        values = merged(merged(TINY, {"experiment": {"name": name}}), difference)
        texts[name] = params_yaml(parse(values))
    for name in random.SystemRandom().sample(sorted(texts), len(texts)):
        (folder / "params.yaml").write_text(texts[name])
        clones.run(folder, "snakemake", "--cores", "all", "target")
    return folder, texts


def test_in_any_order_neither_engine_has_anything_to_do(several: tuple[Path, dict[str, str]]) -> None:
    folder, texts = several
    for name in random.SystemRandom().sample(sorted(texts), len(texts)):
        (folder / "params.yaml").write_text(texts[name])
        assert "Nothing to be done" in clones.run(folder, "snakemake", "-n", "target"), name
        assert "up to date" in clones.run(folder, "dvc", "status"), name


def test_what_is_equal_is_taken(several: tuple[Path, dict[str, str]]) -> None:
    folder, _ = several
    run = "runs/seed_3"
    same_model = [folder / f"models/{name}/tiny_qwen2/model.safetensors" for name in ("tiny", "twin", "gspo")]
    same_policy = sorted((folder / f"results/tiny/{run}/policy").glob("shard-*")) + sorted(
        (folder / f"results/twin/{run}/policy").glob("shard-*")
    )
    for files in (same_model, same_policy):
        assert len({path.read_bytes() for path in files}) == 1
    policies = {(folder / f"results/{name}/{run}/policy/manifest.json").read_text() for name in DIFFERENCES}
    assert len(policies) == len(DIFFERENCES) - 1, "tiny and its twin alone have the same policy"
