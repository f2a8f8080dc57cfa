"""Sampling a test split: what is asked for, what is refused, and one run on the real server."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dagrpo.evaluation.sampling import SamplingRun, complete, draws_of, open_checkpoint, read_problems, sample
from dagrpo.files import write_parquet
from dagrpo.models.fresh import make_fresh
from dagrpo.params.evaluation import Sampling
from dagrpo.params.model import Fresh
from dagrpo.params.runtime import Engine
from dagrpo.records import Completion, Example, SamplingRequest
from dagrpo.rollout.engine.server import serving
from dagrpo.rollout.table import ROLLOUTS
from dagrpo.rollout.trajectory import GREEDY
from dagrpo.tasks.schema import to_table

SHAPE = Fresh(hidden_size=32, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=64)


class FakeClient:
    """Answers each request with its own seed, so that a mix-up shows; remembers how it was asked."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.lockstep: set[bool] = set()

    def generate(self, requests: Sequence[SamplingRequest], *, lockstep: bool) -> list[Completion]:
        self.batches.append(len(requests))
        self.lockstep.add(lockstep)
        return [
            Completion(token_ids=(request.seed % 10, 3), logprobs=(-0.5, -0.25), finish_reason="length")
            for request in requests
        ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model of 64 positions."""
    folder = tmp_path_factory.mktemp("models") / "fresh"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


def write_test_split(folder: Path, questions: Sequence[str]) -> Path:
    examples = [
        Example(
            task="arithmetic",
            split="test",
            index=index,
            prompt=({"role": "user", "content": question},),
            question=question,
            answer="#### 3",
            ground_truth="3",
            data_source="made up",
        )
        for index, question in enumerate(questions)
    ]
    write_parquet(folder / "test.parquet", to_table(examples))
    return folder / "test.parquet"


def run_of(model: Path, folder: Path, questions: Sequence[str] = ("1+2", "0+3", "4-1"), **sampling: int) -> SamplingRun:
    return SamplingRun(
        model=model,
        test_split=write_test_split(folder, questions),
        seed=5,
        sampling=Sampling.model_validate(
            {"samples": 2, "max_new_tokens": 8, "temperature": 0.7, "top_k": 9} | sampling
        ),
        engine=Engine(max_running_requests=4, max_total_tokens=4096),
        dtype="float32",
        deterministic=True,
        server_log=folder / "server.log",
    )


def test_each_problem_is_asked_once_greedily_and_k_times_with_seeds_of_their_own(model: Path, tmp_path: Path) -> None:
    run = run_of(model, tmp_path)
    problems = read_problems(run, open_checkpoint(model))
    draws = [draw for problem in problems for draw in draws_of(problem, run.sampling, run.seed)]
    assert [(draw.problem.index, draw.sample_index) for draw in draws] == [(p, s) for p in range(3) for s in (-1, 0, 1)]
    assert len({draw.request.seed for draw in draws}) == 9
    greedy, sampled = draws[0].request, draws[1].request
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.max_new_tokens) == (0.7, 1.0, 9, 8)


def test_base_and_trained_get_the_same_seeds_and_another_run_gets_others(model: Path, tmp_path: Path) -> None:
    run = run_of(model, tmp_path)
    problem = read_problems(run, open_checkpoint(model))[0]
    seeds = [[d.request.seed for d in draws_of(problem, run.sampling, seed)] for seed in (5, 5, 6)]
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])


def test_completions_come_back_in_order_whatever_the_batches(model: Path, tmp_path: Path) -> None:
    run, client = run_of(model, tmp_path), FakeClient()
    tokenizer = open_checkpoint(model)
    table = complete(client, read_problems(run, tokenizer), tokenizer, run)
    assert client.batches == [4, 4, 1]
    assert client.lockstep == {True}
    assert table.schema == ROLLOUTS
    for row in table.to_pylist():
        assert row["completion_ids"] == [row["sampling_seed"] % 10, 3]
    assert table["sample_index"].to_pylist() == [GREEDY, 0, 1] * 3
    assert table["question"].to_pylist()[::3] == ["1+2", "0+3", "4-1"]


def test_the_prompt_is_the_rendered_chat_template(model: Path, tmp_path: Path) -> None:
    tokenizer = open_checkpoint(model)
    problem = read_problems(run_of(model, tmp_path), tokenizer)[0]
    messages = [{"role": "user", "content": "1+2"}]
    assert problem.prompt == tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(problem.prompt_ids) == problem.prompt


def test_only_the_first_problems_are_sampled_when_there_is_a_limit(model: Path, tmp_path: Path) -> None:
    problems = read_problems(run_of(model, tmp_path, max_problems=2), open_checkpoint(model))
    assert [problem.index for problem in problems] == [0, 1]


def test_a_prompt_without_room_for_its_completion_names_the_row(model: Path, tmp_path: Path) -> None:
    run = run_of(model, tmp_path, questions=["1+2", "1" * 60])
    with pytest.raises(ValueError, match=r"test\.parquet row 1: the prompt has \d+ tokens .* hold 64: lower it"):
        read_problems(run, open_checkpoint(model))


def test_an_empty_split_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"test\.parquet has no rows: choose experiment\.evaluate tasks"):
        read_problems(run_of(model, tmp_path, questions=[]), open_checkpoint(model))


def test_a_checkpoint_that_was_changed_is_not_sampled_from(tmp_path: Path) -> None:
    make_fresh(tmp_path / "m", SHAPE, torch.float32)
    (tmp_path / "m/tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is truncated"):
        sample(run_of(tmp_path / "m", tmp_path))


@pytest.mark.server
def test_the_real_server_gives_the_same_tokens_twice(model: Path, tmp_path: Path) -> None:
    run = run_of(model, tmp_path)
    tokenizer = open_checkpoint(model)
    problems = read_problems(run, tokenizer)
    with serving(model, run.engine, run.server_log, dtype="float32", deterministic=True) as client:
        first, second = (complete(client, problems, tokenizer, run).to_pylist() for _ in range(2))
    for once, again in zip(first, second, strict=True):
        # The second time the prompts are in the server's cache, which rounds differently.
        assert once["logprobs"] == pytest.approx(again["logprobs"], abs=1e-5)
        assert once | {"logprobs": None} == again | {"logprobs": None}
        assert len(once["logprobs"]) == len(once["completion_ids"]) <= 8
        assert once["finish_reason"] in {"stop", "length"}
    assert len({tuple(row["completion_ids"]) for row in first}) > 3
