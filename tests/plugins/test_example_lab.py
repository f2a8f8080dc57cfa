"""An experiment made of somebody else's plug-ins, each named by its import path."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.algorithms.batches import grouped
from tests.rewards.attempts import attempt, scores

from dagrpo.algorithms.advantages import advantages_of
from dagrpo.algorithms.losses import aggregation_of, loss_of
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.config import documents
from dagrpo.config.schema import parse, read_params
from dagrpo.config.selection import selected_modules
from dagrpo.core.errors import UserError
from dagrpo.data.config import Data
from dagrpo.data.prepare import prepare
from dagrpo.data.schema import from_table
from dagrpo.models.folder import save_tokenizer
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.pipeline.validation import require_fitting_tasks
from dagrpo.rewards.grading import Grader
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.usefixtures("_lab")

TASK = "example_lab.tasks.parity"
SHORTNESS = "example_lab.rewards:shortness"
VALUES: dict[str, Any] = {
    "experiment": {"train": TASK, "evaluate": [TASK], "tasks": [TASK]},
    "reward": {"components": {"accuracy": {}, SHORTNESS: {"weight": 0.5, "limit": 10}}},
    "algorithm": {
        "loss": {"name": "example_lab.losses:tilted", "power": 2.0},
        "advantage": {"name": "example_lab.advantages:best"},
    },
}


def test_the_parameters_are_checked_and_written_like_our_own(tmp_path: Path) -> None:
    params = parse(VALUES)
    require_fitting_tasks(params)
    path = tmp_path / "params.yaml"
    path.write_text(documents.params_yaml(params))
    assert read_params(path) == params
    assert "    power: 2.0  # Power of the advantage; its sign stays.\n" in path.read_text()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"algorithm": {"loss": {"name": "example_lab.losses:tilted", "pwer": 2.0}}},
            r"`algorithm.loss.pwer`: the nearest known key is `algorithm.loss.power`",
        ),
        (
            VALUES | {"training": {"prompts_per_step": 4, "mini_batches": 2}},
            "the loss tilted has no ratio to correct later updates",
        ),
        (
            {"reward": {"components": {SHORTNESS: {}, "example_lab.other_rewards:shortness": {}}}},
            r"two reward\.components have the name shortness in metrics",
        ),
    ],
)
def test_a_plug_in_refuses_what_it_cannot_work_with(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(values)


def test_code_identity_starts_at_what_is_selected() -> None:
    params = parse(VALUES)
    assert selected_modules(params, params.experiment.tasks) == {
        "task": ["example_lab.tasks"],
        "verifier": ["example_lab.verifiers"],
        "scorer": [],
        "component": ["dagrpo.rewards.components.answers", "example_lab.rewards"],
        "advantage": ["example_lab.advantages"],
        "loss": ["example_lab.losses"],
        "correction": ["dagrpo.algorithms.corrections.importance_weights"],
        "term": [],
        "format": ["dagrpo.checkpoints.formats.dcp"],
        "model_format": ["dagrpo.checkpoints.formats.huggingface"],
        "agent": ["dagrpo.rollout.agents.tool_agent"],
        "chat": ["dagrpo.chat.renderers.template", "dagrpo.chat.tool_calls.families.hermes"],
        "tool": [],
        "fresh_tool": [],
        "interaction": [],
        "backend": ["dagrpo.trainer.backends.fsdp"],
        "engine": ["dagrpo.engine.sglang", "dagrpo_sglang_adapters.*", "dagrpo_sglang_cpu.*"],
        "teacher_engine": [],
        "reward_engine": [],
    }


def test_the_task_is_prepared_under_the_name_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_tokenizer(tmp_path / "model", character_tokenizer(512))
    folder = tmp_path / "data" / TASK
    card = prepare(TASK, folder, Data(), model=tmp_path / "model", evaluate=[TASK])
    examples = from_table(read_parquet(folder / "test.parquet"))
    assert (card.task, card.counts) == (TASK, {"train": 40, "test": 10})
    assert {example.task for example in examples} == {TASK}


def test_the_verifier_and_the_component_grade() -> None:
    texts = ["It is, yes.", "yes", "I cannot tell"]
    attempts = [
        attempt(text=t, ground_truth="yes", verifier="example_lab.verifiers:yes_or_no", tokens=(3,)) for t in texts
    ]
    with Grader(verify_seconds=2.0, processes=1) as grader:
        graded = scores(attempts, parse(VALUES).reward, grader)
    assert [score.verdict for score in graded] == ["right", "right", "missing"]
    assert [score.components for score in graded] == [
        {"accuracy": 1.0, "shortness": 0.0},
        {"accuracy": 1.0, "shortness": 1.0},
        {"accuracy": 0.0, "shortness": 0.0},
    ]
    assert [score.reward for score in graded] == [1.0, 1.5, 0.0]


def test_the_advantage_and_the_loss_are_computed_with_their_parameters() -> None:
    algorithm = parse(VALUES).algorithm
    advantages = advantages_of(grouped([1.0, 0.5, 3.0, 0.0], 2), algorithm.advantage)
    assert advantages.tolist() == [0.0, -0.5, 0.0, -3.0]
    logprobs = torch.tensor([-1.0, -2.0])
    batch = TokenBatch(
        logprobs=logprobs,
        old_logprobs=logprobs,
        rollout_logprobs=logprobs,
        reference_logprobs=None,
        entropy=torch.zeros(2),
        advantages=torch.tensor([-3.0, 0.5]),
        positive=torch.tensor([False, True]),
        sequence=torch.tensor([0, 1]),
        sequences=2,
    )
    result = loss_of(batch, algorithm.loss)
    assert result.per_token.tolist() == [-9.0, 0.5]
    assert float(result.metrics["scaled_advantage"]) == -8.75
    assert aggregation_of(algorithm.aggregation, algorithm.loss) == "seq-mean-token-sum"
