"""The run of a seed says what happened, once, however often and in whatever order it is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlflow.entities import Dataset, DatasetInput
from packages.dagrpo_mlflow.tests.conftest import SEED, STARTED, execution, parent_runs, stage_record, stage_runs, write
from tests.evaluation.test_scoring import write as completions_in
from tests.report.synthetic import make_experiment

from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.pass_rates import PASS_RATES
from dagrpo.evaluation.scoring import score
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.files import sha256_of, write_json
from dagrpo.utils.tables import write_parquet
from dagrpo_mlflow.curve import Step
from dagrpo_mlflow.execution import checkpoints_in
from dagrpo_mlflow.models import Policy, Score
from dagrpo_mlflow.parents import open_run, settle_parents
from dagrpo_mlflow.read import Contents, contents_of
from dagrpo_mlflow.runs import open_experiment
from dagrpo_mlflow.store import open_client, tracking_uri
from dagrpo_mlflow.summaries import Summary, summaries
from dagrpo_mlflow.views import VIEW_TAG, experiment_tags

CONFIGURATION = {"digest": "403581bc", "seeds": [0], "changed": {"training.steps": 40}}
FIGURES = (
    "eval/gsm8k/greedy_base",
    "eval/gsm8k/greedy_difference",
    "eval/gsm8k/greedy_trained",
    "timing/tokens_per_second_mean",
)
DATA = Dataset("gsm8k/test", "d" * 36, "local", "{}")


def policy(name: str, digest: str, step: int, greedy: float) -> Policy:
    folder = {"base": "sft", "trained": "exported"}[name]
    (checkpoint,) = checkpoints_in({f"{SEED}/{folder}/manifest.json": digest * 64})
    score = Score(group="eval/gsm8k", data="gsm8k/test", digest="d" * 64, values={"greedy": greedy})
    return Policy(checkpoint=checkpoint, step=step, scores=(score,))


def page(trained: str = "b") -> Summary:
    return Summary(
        seed=0,
        text="GRPO raised it.",
        figures={"eval/gsm8k/greedy_base": 0.25, "eval/gsm8k/greedy_difference": 0.5},
        tags={"interval.eval/gsm8k/greedy_difference": "+50.0 (+40.0 to +60.0)"},
        policies=[
            policy("base", "a", 0, 0.25),
            replace(policy("base", "a", 20, 0.5), checkpoint=None),
            policy("trained", trained, 40, 0.75),
        ],
    )


def report(project: Path, summary: Summary, **changes: Any) -> None:
    contents = Contents(summaries=[summary], files={"report.html": "<html>"}, data_sets=[DatasetInput(DATA, [])])
    write(project, execution(stage_record("report", None, **changes), configuration=CONFIGURATION), contents)


def test_the_run_of_a_seed_has_scores_text_parameters_data_and_policies_once(project: Path) -> None:
    for _ in range(2):
        report(project, page())
    client = open_client(tracking_uri(project))
    (parent,) = parent_runs(project).values()
    assert parent.info.run_name == "seed 0, 403581bc", "with one seed the stages that all share belong to it"
    assert parent.data.metrics["eval/gsm8k/greedy_difference"] == 0.5
    assert parent.data.metrics["eval/gsm8k/greedy"] == 0.75, "the latest: that of the trained policy"
    points = client.get_metric_history(parent.info.run_id, "eval/gsm8k/greedy")
    assert [(point.step, point.value) for point in points] == [(0, 0.25), (20, 0.5), (40, 0.75)]
    assert parent.data.tags["interval.eval/gsm8k/greedy_difference"] == "+50.0 (+40.0 to +60.0)"
    assert parent.data.tags["mlflow.note.content"] == "GRPO raised it."
    files = client.list_artifacts(parent.info.run_id)
    assert [file.path for file in files] == ["report.html"], "what the report stage shows"
    assert parent.data.params == {"training.steps": "40"}
    assert [entry.dataset.name for entry in parent.inputs.dataset_inputs] == ["gsm8k/test"]
    assert sorted(output.step for output in parent.outputs.model_outputs) == [0, 40]
    assert len(client.search_logged_models(["1"])) == 2
    assert len(client.get_metric_history(parent.info.run_id, "eval/gsm8k/greedy_base")) == 1


def test_the_scores_of_kept_policies_belong_to_their_steps(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, kept={9: 0.8, 6: 0.7}).read()
    (summary,) = summaries(inputs, {}, {}, [])
    assert [(each.step, each.checkpoint) for each in summary.policies] == [(6, None), (9, None)]
    assert (
        summary.policies[1].scores[0].values["greedy"] == inputs.summary("arithmetic", "step_9", 0)["greedy"]["value"]
    )


def test_scores_know_their_policy_and_their_data(project: Path) -> None:
    report(project, page())
    data = {"field_name": "metrics.eval/gsm8k/greedy", "dataset_name": "gsm8k/test", "dataset_digest": "d" * 36}
    models = open_client(tracking_uri(project)).search_logged_models(["1"], order_by=[data | {"ascending": False}])
    assert [(model.name, model.tags["manifest.sha256"][0]) for model in models] == [
        ("trained-seed-0", "b"),
        ("base-seed-0", "a"),
    ]


def train(project: Path, steps: int, **changes: Any) -> None:
    curve = [Step(step, STARTED + step, {"reward/mean": step / 10}) for step in range(1, steps + 1)]
    record = stage_record(params={"training": {"steps": 3, "prompts_per_step": 8, "samples_per_prompt": 4}})
    write(project, execution(record, configuration=CONFIGURATION, **changes), Contents(steps=curve))


def test_a_killed_and_resumed_training_is_one_whole_curve(project: Path) -> None:
    train(project, 2, status="KILLED", outputs={})
    train(project, 3, started=STARTED + 9000, ended=STARTED + 12_000)  # reported again from the first step on
    (parent,) = parent_runs(project).values()
    points = open_client(tracking_uri(project)).get_metric_history(parent.info.run_id, "reward/mean")
    assert [(point.step, point.value) for point in points] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    seen = open_client(tracking_uri(project)).get_metric_history(parent.info.run_id, "rollout/samples_seen")
    assert [(point.step, point.value) for point in seen] == [(1, 32), (2, 64), (3, 96)], "an axis for charts"
    assert [run.info.run_name for run in stage_runs(project)] == ["train", "train, attempt 2"]
    assert parent.info.status == "FINISHED"


def test_a_failed_run_says_its_sentence_until_it_succeeds(project: Path) -> None:
    def run(stage: str, **changes: Any) -> None:
        write(project, execution(stage_record(stage), configuration=CONFIGURATION, **changes))

    run("score", status="FAILED", error="row 3: no answer.", outputs={})
    run("sample")
    failed = parent_runs(project)["0"]
    assert failed.info.status == "FAILED", "the whole is what its stages are, not what the last one is"
    assert failed.data.tags["mlflow.note.content"] == "**Failed.** score: row 3: no answer."
    run("score", started=STARTED + 1)
    whole = parent_runs(project)["0"]
    assert whole.info.status == "FINISHED"
    assert whole.data.tags["mlflow.note.content"] == ""
    assert "error" not in whole.data.tags


def test_a_parent_runs_while_any_child_does_and_the_same_outputs_are_never_made_by_two(project: Path) -> None:
    client = open_client(tracking_uri(project))
    write(project, execution(stage_record("sample")))
    running = execution(stage_record("train"), status="RUNNING", outputs={}, ended=None)
    runs = open_experiment(client, "demo", None)
    open_run(runs, running)
    settle_parents(runs)
    assert parent_runs(project)["0"].info.status == "RUNNING"
    write(project, execution(stage_record("train", key="f" * 64), started=STARTED + 1))
    statuses = [(run.data.tags["stage"], run.info.status) for run in stage_runs(project)]
    assert sorted(statuses) == [("sample", "FINISHED"), ("train", "FINISHED"), ("train", "KILLED")]


def test_pass_rates_are_figures_of_their_stage(project: Path) -> None:
    outputs = all_stages()["difficulty"].outputs
    table, train = (
        Path(str(outputs[name]).format(experiment="demo", train="arithmetic")) for name in ("pass_rates", "train")
    )
    row = {"question_sha256": "a" * 64, "pass_rate": 0.5, "right": 1, "unverifiable": 0, "samples": 2}
    for path in (table, train):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(path, pa.Table.from_pylist([row], schema=PASS_RATES))
    digests = {str(path): sha256_of(path) for path in (table, train)}
    record = stage_record("difficulty", None, params={"difficulty": {"samples": 2}}, inputs={})
    (step,) = contents_of(execution(record, outputs=digests)).steps
    assert step.values["mean_pass_rate"] == 0.5


def test_the_scores_of_published_scorers_stand_beside_the_main_one_with_their_intervals(project: Path) -> None:
    folder = project / SEED / "eval/gsm8k/trained"
    folder.mkdir(parents=True)
    scores, summary = score(completions_in(folder, task="gsm8k"), Scoring(bootstrap_draws=100, also=["verl_gsm8k"]))
    write_json(folder / "scores.json", {**summary, "oracle": False})
    write_parquet(folder / "scores.parquet", scores)
    outputs = {str(path): sha256_of(path) for path in (folder / "scores.json", folder / "scores.parquet")}
    contents = contents_of(execution(stage_record("score", inputs={}), outputs=outputs))
    (step,) = contents.steps
    verl, main = (step.values[f"eval/gsm8k/mean_at_4{suffix}"] for suffix in ("_by_verl_gsm8k", ""))
    assert verl == pytest.approx(1.5 / 4)
    assert main == summary["mean_at_k"]["value"]
    by_verl = summary["scorers"]["verl_gsm8k"]["mean_at_k"]
    assert (
        contents.tags["interval.eval/gsm8k/mean_at_4_by_verl_gsm8k"] == f"{by_verl['low']:.4f} to {by_verl['high']:.4f}"
    )
    assert "eval/gsm8k/mean_at_4_by_verl_gsm8k_low" not in step.values


def test_differences_stand_first_then_what_tells_runs_apart_as_wide_as_their_headings() -> None:
    state = json.loads(experiment_tags(FIGURES, {"rollout.temperature", "training.steps"})[VIEW_TAG])
    assert state["selectedColumns"][:9] == [
        "metrics.`eval/gsm8k/greedy_difference`",
        "params.`rollout.temperature`",
        "params.`training.steps`",
        "params.`training.learning_rate`",
        "params.`algorithm.loss.name`",
        "params.`model.name`",
        "metrics.`eval/gsm8k/greedy_base`",
        "metrics.`eval/gsm8k/greedy_trained`",
        "metrics.`timing/tokens_per_second_mean`",
    ]
    assert state["columnOrder"] == state["selectedColumns"] == list(state["columnWidths"])
    assert state["columnWidths"]["metrics.`eval/gsm8k/greedy_base`"] == 30 + 6 * len("eval/gsm8k/greedy_base")
    charts = state["compareRunCharts"]
    assert [chart["metricKey"] for chart in charts[:2]] == ["held_out/gsm8k/greedy", "reward/mean"]
