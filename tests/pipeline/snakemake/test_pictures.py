"""Geometry3K's own rows through the whole DAG, on a tiny vision-language model with the real SGLang server."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.snakemake import clones

from dagrpo.checkpoints.compare import compare
from dagrpo.config.overlay import merged
from dagrpo.core.trajectory import BLIND
from dagrpo.data.schema import from_table
from dagrpo.models.pictures import PictureProcessor
from dagrpo.report.splits import Pictures
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.tables import read_parquet

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
TASK = "geo3k"
NAME = "geo3k_tiny"
RUN = Path(f"results/{NAME}/runs/seed_0")
ROWS = {"train": 12, "test": 4}
STEPS = 4
CHANGES = {
    "experiment": {"name": NAME},
    "data": {"max_train": ROWS["train"], "max_test": ROWS["test"], "max_prompt_tokens": 384},
    "model": {
        "max_pixels": 16 * 28 * 28,
        "fresh": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512},
    },
    "sft": {"steps": 50, "batch_size": 12, "learning_rate": 0.003},
    "rollout": {"max_new_tokens": 24},
    "training": {
        "steps": STEPS, "prompts_per_step": 4, "samples_per_prompt": 4, "max_prompt_tokens": 384, "learning_rate": 0.0003,
    },
    "runtime": {"training": {"save_every": 1}},
    "evaluation": {"sampling": {"samples": 2, "max_new_tokens": 24}, "scoring": {"bootstrap_draws": 100}},
}  # fmt: skip


@pytest.fixture(scope="module")
def mirror(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of each split, with their figures."""
    source, folder = data_folder / TASK, tmp_path_factory.mktemp("mirror")
    if not source.is_dir():
        pytest.skip(f"no copy of Geometry3K in {source}")
    for split, number in ROWS.items():
        (folder / TASK / split).mkdir(parents=True)
        lines = (source / f"{split}.jsonl").read_text().splitlines()[:number]
        (folder / TASK / f"{split}.jsonl").write_text("\n".join(lines))
        for name in (json.loads(line)["image"] for line in lines):
            shutil.copyfile(source / name, folder / TASK / name)
    return folder


@pytest.fixture(scope="module")
def finished(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which Snakemake has run all stages."""
    folder = clones.clone(tmp_path_factory.mktemp("pictures") / "clone")
    preset = merged({"use": ["tiny_vl", TASK]}, merged(CHANGES, {"data": {"mirror": str(mirror)}}))
    write_json(folder / "geo3k_tiny.yaml", preset)
    clones.run(folder, "dagrpo", "use", "geo3k_tiny.yaml", "--force")
    clones.run(folder, "snakemake", "--cores", "all", "target", timeout=3600)
    return folder


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_parquet(path).to_pylist()
    return rows


def _shown(folder: Path, split: str) -> dict[int, int]:
    """How many tokens the figure of each problem takes."""
    processor, path = PictureProcessor.of(folder / RUN / "exported"), folder / f"data/{NAME}/{TASK}/{split}.parquet"
    return {each.index: sum(map(processor.count, each.images)) for each in from_table(read_parquet(path))}


def test_every_prompt_has_the_tokens_of_its_figure_and_without_pictures_none(finished: Path) -> None:
    image = PictureProcessor.of(finished / RUN / "exported").tokens.image
    train, test = (_shown(finished, split) for split in ROWS)
    assert {"train": len(train), "test": len(test)} == ROWS
    assert all(4 <= tokens <= 16 for tokens in (*train.values(), *test.values()))
    for row in _rows(finished / RUN / "rollouts/step_00001.parquet"):
        assert row["prompt_ids"].count(image) == train[row["problem_index"]]
    for policy in ("base", "trained"):
        attempts = _rows(finished / RUN / f"eval/{TASK}/{policy}/completions.parquet")
        assert sum(row["sample_index"] == BLIND for row in attempts) == ROWS["test"]
        for row in attempts:
            shown = 0 if row["sample_index"] == BLIND else test[row["problem_index"]]
            assert row["prompt_ids"].count(image) == shown


def test_engine_and_trainer_agree_on_the_figures_and_the_tower_learns_from_rewards(finished: Path) -> None:
    metrics = _rows(finished / RUN / "metrics.parquet")
    assert [row["step"] for row in metrics] == [*range(1, STEPS + 1)]
    assert max(row["policy/logprob_difference_max"] for row in metrics) < 1e-4
    assert max(row["reward/std"] for row in metrics) > 0, "rewards that are all equal teach nothing"
    assert max(row["policy/vision_grad_norm"] for row in metrics) > 0
    differences = compare(finished / RUN / "sft", finished / RUN / "exported").differences
    assert any("visual" in difference.name for difference in differences if difference.largest)


def test_what_is_exported_reads_pictures_as_the_model_does_that_was_made(finished: Path) -> None:
    for name in ("preprocessor_config.json", "chat_template.jinja", "tokenizer.json"):
        exported = (finished / RUN / "exported" / name).read_bytes()
        assert exported == (finished / f"models/{NAME}/tiny_vl" / name).read_bytes()


def test_the_report_shows_figures_and_the_score_without_them(finished: Path) -> None:
    page = (finished / f"results/{NAME}/report/report.html").read_text()
    assert "Greedy accuracy without pictures" in page
    shown = re.findall(r'src="(data:image/png;base64,[^"]+)"', page)
    assert len(shown) == len(set(shown)) >= ROWS["test"], "no picture stands twice in the page"
    tests = Pictures([finished / f"data/{NAME}/{TASK}/test.parquet"])
    assert {uri for row in range(ROWS["test"]) for uri in tests.of(TASK, row)} < set(shown), "those of training, too"
    scores = read_json(finished / RUN / f"eval/{TASK}/trained/scores.json")
    assert scores["problems"] == ROWS["test"]
    assert scores["greedy_without_pictures"].keys() == {"value", "low", "high"}


def test_the_lineage_of_the_score_reaches_the_raw_rows(finished: Path) -> None:
    output = clones.run(finished, "dagrpo", "lineage", f"{RUN}/eval/{TASK}/trained/scores.json")
    for origin in (f"{TASK}/train.jsonl", f"{TASK}/test.jsonl", "export", "train", "sft", "prepare"):
        assert origin in output
