"""Every name that a run records has a definition, and docs/metrics.md has its row."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.site.pages import with_tables
from tests.algorithms.batches import ratios
from tests.report.synthetic import make_experiment
from tests.trainer import picture_runs, runs
from tests.trainer.free_engine import FreeEngine
from tests.trainer.runs import held_out_splits

from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.corrections import CORRECTIONS, weights_of
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.core.metrics import METRICS, SAMPLES_SEEN, definition_of
from dagrpo.core.trajectory import Prompt
from dagrpo.data.schema import to_table
from dagrpo.evaluation.scoring import metrics_to_log
from dagrpo.report import build
from dagrpo.report.comparison import compare
from dagrpo.rewards.components import judge, reward_model
from dagrpo.rewards.config import Reward
from dagrpo.trainer import setup
from dagrpo.trainer.config.runtime import SftRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.metrics.throughput import Throughput
from dagrpo.trainer.run import SftRun
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.sft import fine_tune
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import write_parquet

EVERYTHING = {
    "advantage": {"name": "remax"},
    "loss": {"name": "ppo_clip", "dual_clip": 3.0},
    "correction": {"name": "token_truncated"},
    "off_policy_mask": 0.5,
    "terms": {
        "adaptive_entropy": {"coefficient": 0.01},
        "squared_log_ratio": {"coefficient": 0.1},
        "distillation": {"coefficient": 0.1},
    },
    "teacher": {"source": "initial"},
    "kl": {"coefficient": 0.1},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def _with_a_tool_and_a_known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems that offer a tool, and figures of speed as on a device whose peak is known."""
    known = Throughput.of

    def problems(*arguments: Any) -> list[Prompt]:
        return [
            replace(each, tools=({"function": {"name": "calculator"}},)) for each in read_training_prompts(*arguments)
        ]

    def of(*arguments: Any) -> Throughput:
        return replace(known(*arguments), update_peak=1e12, rollout_peak=1e12)

    monkeypatch.setattr(setup, "read_training_prompts", problems)
    monkeypatch.setattr(Throughput, "of", of)


def _of_training(inputs: tuple[Path, Path], folder: Path) -> set[str]:
    """A run with everything that measures something."""
    run = runs.training_run(inputs, folder / "state", folder, steps=1)
    also = {"dynamic_sampling": {"max_rounds": 2}, "retire_at": 0.9, "evaluate_every": 1, "dtype": "float16"}
    training = Training.model_validate(run.training.model_dump() | also)
    # The scripted policy is never right; a completion of six tokens, the longest, costs 1, and all others nothing.
    reward = Reward.model_validate({"components": {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": 1}}})
    algorithm = Algorithm.model_validate(EVERYTHING)
    teacher, held_out = inputs[0].with_name("model"), set[str]()
    _, reported = runs.execute(
        replace(
            run,
            training=training,
            reward=reward,
            algorithm=algorithm,
            teacher=teacher,
            held_out_splits=(held_out_splits(folder, "sums", [20, 21]),),
        ),
        report_held_out=lambda step, metrics: held_out.update(metrics),
    )
    return set(reported[-1][1]) | held_out


def _of_sampling_a_mixture_ahead(inputs: tuple[Path, Path], folder: Path) -> set[str]:
    run, other = runs.training_run(inputs, folder / "state", folder, steps=1), folder / "other.parquet"
    write_parquet(other, to_table([replace(runs.task_row(number), task="other") for number in range(4)]))
    run = replace(run, train_splits={**run.train_splits, "other": other}, shares={"arithmetic": 0.5, "other": 0.5})
    _, reported = runs.execute(replace(run, training=run.training.model_copy(update={"staleness": 1})))
    return {*reported[0][1]}


def _of_cutting_off(inputs: tuple[Path, Path], folder: Path) -> set[str]:
    run = runs.training_run(inputs, folder / "state", folder, steps=1)
    cutting = run.training.model_dump() | {
        "dynamic_sampling": {"oversampling": 2.0, "max_aborts": 1, "partial_rollouts": True}
    }
    rollout = run.rollout.model_copy(update={"deterministic": False})
    run = replace(run, training=Training.model_validate(cutting), rollout=rollout)
    return {*runs.execute(run, FreeEngine)[1][0][1]}


def _of_tuning(inputs: tuple[Path, Path], folder: Path) -> set[str]:
    names: set[str] = set()
    run = SftRun(
        model=inputs[0].with_name("model"),
        train_splits={"arithmetic": inputs[1]},
        seed=3,
        sft=Sft(steps=1, batch_size=2),
        runtime=SftRuntime(),
        state=folder / "sft",
        tuned=folder / "tuned",
    )
    fine_tune(run, lambda step, metrics: names.update(metrics), single_process())
    return names


def _of_evaluation(folder: Path) -> set[str]:
    inputs = make_experiment(folder, tasks=("sums_tool",), problems=12, steps=2).read()
    summary = inputs.summary("sums_tool", "base", 0)
    seen = {**summary, "greedy_without_pictures": summary["greedy"]}
    seen["parts_by_extractor"] = {"strict": {"greedy": 0.5}}
    seen["scorers"] = {"verl_gsm8k": {"mean_at_k": summary["mean_at_k"], "pass_at_k": summary["pass_at_k"]}}
    scores = {f"eval/sums_tool/{name}" for name in metrics_to_log(seen)}
    return scores | set(build.metrics_to_log([compare(inputs, "sums_tool")]))


def _of_plugins() -> Iterator[str]:
    """What our own losses and corrections measure, one after the other."""
    chosen = torch.tensor([1.0, 0.0])
    batch = replace(ratios([[1.0, 2.0]], [1.0]), selected=chosen, teacher_logprobs=chosen - 1)
    for name in LOSSES.own_names():
        share = {"share": 0.3} if LOSSES.get(name).select else {}
        yield from loss_of(batch, LOSSES.get(name).config.model_validate({"name": name, **share})).metrics
    for name in CORRECTIONS.own_names():
        yield from weights_of(batch, CORRECTIONS.get(name).config.model_validate({"name": name})).metrics


def _of_training_with_pictures(folder: Path) -> set[str]:
    """One step whose problems show pictures."""
    given = picture_runs.make_inputs(folder, "qwen2_5_vl")
    _, reported = runs.execute(picture_runs.training_run(given, folder, 1, "trained"), picture_runs.SeeingEngine)
    return {*reported[0][1]}


@pytest.mark.usefixtures("_with_a_tool_and_a_known_peak")
def test_every_name_that_runs_write_has_a_definition_and_every_definition_is_of_some_name(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    trained = _of_training(inputs, tmp_path) | _of_sampling_a_mixture_ahead(inputs, tmp_path / "ahead")
    trained |= _of_cutting_off(inputs, tmp_path / "cut")
    assert {f"timing/{part}_seconds" for part in ("rollout", "rewards", "update")} <= trained
    written = trained | _of_tuning(inputs, tmp_path) | _of_evaluation(tmp_path)
    written |= {f"policy/{name}" for name in _of_plugins()} | _of_training_with_pictures(tmp_path / "pictures")
    written |= {*judge.METRICS, reward_model.CLIPPED, reward_model.WITHOUT_ANSWER, SAMPLES_SEEN}
    definitions = {name: definition_of(name) for name in written if not name.endswith(("_low", "_high"))}
    assert sorted(name for name, found in definitions.items() if found is None) == []
    assert sorted({metric.name for metric in METRICS} - {found.name for found in definitions.values() if found}) == []


def test_the_tables_of_the_document_are_the_generated_ones() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/metrics.md").read_text()
    assert with_tables(page) == page
    assert {*re.findall(r"^\| `(\w+/.+?)` \|", page, re.MULTILINE)} == {metric.name for metric in METRICS}


def test_a_figure_is_found_by_its_own_name_before_that_of_a_family() -> None:
    def found(name: str) -> str:
        definition = definition_of(name)
        return definition.name if definition else "none"

    assert found("tool/called_fraction") == "tool/called_fraction"
    assert found("tool/timed_out_fraction") == "tool/<status>_fraction"
    assert found("eval/gsm8k/mean_at_16") == "eval/<task>/mean_at_<k>"
    assert found("eval/gsm8k/mean_at_16_by_verl_gsm8k") == "eval/<task>/<score>_by_<scorer>"
    assert found("reward/component/greedy_mean") == "reward/component/<label>"
    assert found("policy/scaled_advantage") == "none", "that of a plug-in"
