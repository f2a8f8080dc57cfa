"""Sampling a test split: what is asked for, what is refused, and one run on the real server."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pictures import picture
from tests.rollout.problems import task_row
from tests.rollout.scripted_engine import ScriptedEngine

from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import BLIND, GREEDY
from dagrpo.core.types import SamplingRequest
from dagrpo.data.schema import to_table
from dagrpo.engine import sglang
from dagrpo.evaluation import sampling
from dagrpo.evaluation.config import Sampling
from dagrpo.evaluation.kept import opened_kept
from dagrpo.evaluation.sampling import (
    SplitAttempts,
    attempt,
    attempt_blindly,
    evaluation_sampling,
    opened,
    read_prompts,
    sample,
)
from dagrpo.models.config import Fresh, Vision
from dagrpo.models.fresh import make_fresh
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.utils.tables import write_parquet

SPLITS = {"empty": [], "one": ["1+2"], "two": ["2+2", "4-1"]}
SHAPE = Fresh(hidden_size=32, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model of 64 positions."""
    folder = tmp_path_factory.mktemp("models") / "fresh"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


def attempts_of(
    model: Path, folder: Path, questions: Sequence[str] = ("1+2", "0+3", "4-1"), **changes: Any
) -> SplitAttempts:
    task_rows = [task_row(question, split="test", index=index) for index, question in enumerate(questions)]
    write_parquet(folder / "test.parquet", to_table(task_rows))
    section = Sampling(samples=2, max_new_tokens=8, temperature=0.7, top_k=9)
    attempts = SplitAttempts(
        model=model,
        split=folder / "test.parquet",
        conversation=Conversation(),
        sampling=evaluation_sampling(section, deterministic=True),
        seeds=(1000, 5),
        engine=sglang.Config(max_running_requests=4, max_total_tokens=4096),
        dtype="float32",
        server_log=folder / "server.log",
        agent_folder=folder / "agent",
    )
    return replace(attempts, **changes)


def requests_of(attempts: SplitAttempts) -> list[list[SamplingRequest]]:
    """The lockstep batches that the engine is asked for."""
    engine, tokenizer = ScriptedEngine(), load_tokenizer(attempts.model)
    attempt(read_prompts(attempts, tokenizer), attempts, engine, tokenizer)
    return engine.batches


def test_each_problem_is_attempted_once_greedily_and_k_times_with_seeds_of_their_own(
    model: Path, tmp_path: Path
) -> None:
    batches = requests_of(attempts_of(model, tmp_path))
    assert [len(batch) for batch in batches] == [4, 4, 1]  # as many as run at once
    requests = [request for batch in batches for request in batch]
    assert [request.seed for request in requests] == [
        sampling_seed(1000, 5, "arithmetic", problem, sample) for problem in range(3) for sample in (GREEDY, 0, 1)
    ]
    greedy, sampled = requests[:2]
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.max_new_tokens) == (0.7, 1.0, 9, 8)


def test_base_and_trained_get_the_same_seeds_and_another_run_gets_others(model: Path, tmp_path: Path) -> None:
    make_fresh(tmp_path / "trained", SHAPE, torch.float32)
    seeds = []
    for changes in ({"model": model}, {"model": tmp_path / "trained"}, {"seeds": (1000, 6)}, {"seeds": (1001, 5)}):
        batches = requests_of(replace(attempts_of(model, tmp_path), **changes))
        seeds.append({request.seed for batch in batches for request in batch})
    assert seeds[0] == seeds[1]
    assert not seeds[0] & seeds[2]
    assert not seeds[0] & seeds[3]


def test_a_prompt_without_room_for_its_completion_names_the_row_and_the_parameter(model: Path, tmp_path: Path) -> None:
    attempts = attempts_of(model, tmp_path, questions=["1+2", "1" * 60])
    sentence = r"test\.parquet row 1: the prompt has \d+ tokens, and evaluation\.sampling\.max_new_tokens is 8, .* hold 64: lower"
    with pytest.raises(UserError, match=sentence):
        read_prompts(attempts, load_tokenizer(model))
    rated = replace(attempts, sampling=replace(attempts.sampling, section="rollout"))
    with pytest.raises(UserError, match=r"and rollout\.max_new_tokens is 8"):
        read_prompts(rated, load_tokenizer(model))


def test_a_checkpoint_that_was_changed_is_not_sampled_from(tmp_path: Path) -> None:
    make_fresh(tmp_path / "m", SHAPE, torch.float32)
    (tmp_path / "m/tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is truncated"), opened(attempts_of(tmp_path / "m", tmp_path)):
        pass


def test_an_engine_is_started_for_rows_that_can_be_used_and_once_for_several_splits(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def start(model: Path, *_: object, **__: object) -> AbstractContextManager[ScriptedEngine]:
        started.append(model)
        return nullcontext(ScriptedEngine())

    monkeypatch.setattr(sampling, "open_engine", start)
    splits = [attempts_of(model, tmp_path / name, questions) for name, questions in SPLITS.items()]
    with opened(splits[0]) as checkpoint:
        with pytest.raises(UserError, match="has no rows"):
            sample(splits[0], checkpoint)
        assert not started
        tables = [sample(split, checkpoint) for split in splits[1:]]
    assert started == [model]
    assert [table["problem_index"].to_pylist() for table in tables] == [[0] * 3, [0] * 3 + [1] * 3]


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model that takes pictures."""
    folder = tmp_path_factory.mktemp("models") / "seer"
    vision = Vision(family="qwen3_vl", depth=2, hidden_size=16, num_heads=2, patch_size=10)
    make_fresh(folder, SHAPE.model_copy(update={"vision": vision}), torch.float32)
    return folder


def shown(seer: Path, folder: Path, **changes: Any) -> SplitAttempts:
    """Three problems, the second without a picture."""
    attempts = attempts_of(seer, folder, **changes)
    questions = {"<image>1+2": (picture(),), "0+3": (), "4-<image>": (picture(60, 40),)}
    task_rows = [
        task_row(question, split="test", index=index, images=files)
        for index, (question, files) in enumerate(questions.items())
    ]
    write_parquet(attempts.split, to_table(task_rows))
    return attempts


def test_problems_with_pictures_are_attempted_once_more_without_them(seer: Path, tmp_path: Path) -> None:
    attempts = shown(seer, tmp_path, without_pictures=True)
    engine, tokenizer = ScriptedEngine(), load_tokenizer(seer)
    problems = read_prompts(attempts, tokenizer)
    hidden = attempt_blindly(problems, attempts, engine, tokenizer)
    assert [(each.prompt.index, each.sample_index) for each in hidden] == [(0, BLIND), (2, BLIND)]
    (requests,) = engine.batches
    assert [request.temperature for request in requests] == [0.0, 0.0]
    for request, said in zip(requests, ("1+2", "4-"), strict=True):
        assert tokenizer.decode(list(request.input_ids)) == f"<|user|>{said}<|end|><|assistant|>"
        assert request.pictures is not None
        assert request.pictures.files == (), "a policy may write placeholders here, too"


@pytest.mark.nightly
@pytest.mark.server
def test_the_real_server_answers_with_pictures_and_without(seer: Path, tmp_path: Path) -> None:
    attempts = shown(seer, tmp_path, without_pictures=True)
    with opened(attempts) as checkpoint:
        table = sample(attempts, checkpoint)
    assert table["sample_index"].to_pylist() == [GREEDY, 0, 1] * 3 + [BLIND] * 2
    assert table["problem_index"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 2]
    lengths = [len(ids) for ids in table["prompt_ids"].to_pylist()]
    assert lengths[0] == lengths[9] + 4 + 2, "four tokens of the picture, between its marks"
    assert lengths[6] == lengths[10] + 6 + 2


@pytest.mark.nightly
@pytest.mark.server
def test_a_kept_policy_gets_from_the_running_server_what_a_fresh_one_gives_whichever_stood_there_before(
    model: Path, tmp_path: Path
) -> None:
    attempts, kept = attempts_of(model, tmp_path), tmp_path / "kept"
    for step in (1, 2):
        make_fresh(tmp_path / f"step_{step}", SHAPE.model_copy(update={"seed": step}), torch.float32)
        write(kept, model, step, open_tensors(tmp_path / f"step_{step}"))
    fresh = replace(attempts, model=tmp_path / "step_2")
    with opened(fresh) as checkpoint:
        due = sample(fresh, checkpoint)
    with opened_kept(attempts, kept, model) as checkpoint_of:
        first, other, again = (sample(attempts, checkpoint_of(f"step_{step}")) for step in (2, 1, 2))
        with pytest.raises(UserError, match="keeps no policy of step 3"):
            sample(attempts, checkpoint_of("step_3"))
    assert first.equals(due)
    assert again.equals(due)
    assert other["completion_ids"].to_pylist() != due["completion_ids"].to_pylist()
    assert len({*due["completion"].to_pylist()}) > 3
    assert set(due["finish_reason"].to_pylist()) <= {"stop", "length"}
