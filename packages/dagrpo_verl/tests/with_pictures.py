"""A run whose problems have pictures, and what verl must get of its attempts."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image
from tests.trainer import foreign_runs, picture_runs

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.models.pictures import PictureProcessor, processor_of
from dagrpo.rollout.prompts import PromptRenderer, read_split
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.utils.tables import read_parquet
from dagrpo_verl import running

# One picture, two, none, one; the third completion begins a picture of its own, which no policy may write.
SCRIPTS = {0: ["#### 1"], 1: ["#### 1"], 2: ["#### 3"], 3: ["4<|vision_start|>#### 4"]}


def run_in(folder: Path, family: str, python: str | None = None) -> TrainingRun:
    """Return a run of ten problems, three in four with pictures. `python`: that of verl."""
    changes = {
        "rollout": {"max_new_tokens": 20},
        "training": {"steps": 2, "max_prompt_tokens": 64, "backend": {"name": "verl"}},
        "runtime": {"backend": {"python": python}},
    }
    params = parse(merged(foreign_runs.CHANGES, changes))
    run = picture_runs.training_run(picture_runs.make_inputs(folder, family), folder / "out", 4, "trained")
    return replace(run, **foreign_runs.sections_of(params))


def sizes(files: Sequence[bytes]) -> list[list[int]]:
    """Return width and height of pictures."""
    return [list(Image.open(io.BytesIO(file)).size) for file in files]


def rows_of_verl(path: Path) -> pa.Table:
    """Return our rows with the column that verl's own data set reads pictures from."""
    table = read_parquet(path)
    pictures = [[{"bytes": file} for file in row.images] for row in read_split(path)]
    shown = pa.array(pictures, pa.list_(pa.struct({"bytes": pa.binary()})))
    return table.select(running.COLUMNS).append_column("images", shown)


def require_ours(found: Mapping[int, Any], run: TrainingRun) -> None:
    """Check the prompts, pictures and rewards that verl gets, which are those of our own trainer."""
    processor = PictureProcessor.of(run.initial)
    tokenizer = load_tokenizer(run.initial)
    renderer = PromptRenderer(tokenizer, run.rollout, processor_of(run.initial))
    for prompt in read_training_prompts([*run.train_splits.values()], renderer, run.training)[: len(SCRIPTS)]:
        [asked], [sequence] = found[prompt.index]["asked"], found[prompt.index]["sequences"]
        assert tuple(asked["prompt"]) == prompt.token_ids == tuple(sequence["prompt_ids"])
        files = prompt.row.images
        assert prompt.token_ids.count(processor.tokens.image) == sum(map(processor.count, files))
        assert asked["pictures"] == sizes(files)
        assert sequence["pictures"] == len(files)
        assert asked["sampling"]["stop_token_ids"] == list(processor.tokens.unwritten)
    texts = {number: tokenizer.decode(each["sequences"][0]["response_ids"]) for number, each in found.items()}
    assert texts[0].startswith("#### 1")
    assert texts[3] == "4"
    rewards = {number: each["sequences"][0]["reward_score"] for number, each in found.items()}
    assert rewards == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
