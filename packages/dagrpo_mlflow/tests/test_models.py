"""A policy is one model, an output of what made it and an input of what reads it, however often and in whatever order that is told."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_mlflow.tests.conftest import execution, stage_record, stage_runs, write
from packages.dagrpo_mlflow.tests.test_pages import CONFIGURATION, page, report
from packages.dagrpo_mlflow.tests.test_traces import TABLE, traces_in

from dagrpo.report.attempt import attempts_of
from dagrpo.utils.files import write_json
from dagrpo_mlflow.parents import NOTE
from dagrpo_mlflow.read import Contents, contents_of
from dagrpo_mlflow.store import open_client, tracking_uri

RUN = "results/demo/runs/seed_0"
FOLDERS = ("sft", "initial", "policy", "exported", "kept")
SFT, INITIAL, POLICY, EXPORTED, KEPT = (f"{RUN}/{name}/manifest.json" for name in FOLDERS)
DIGESTS = {SFT: "a" * 64, INITIAL: "1" * 64, POLICY: "2" * 64, EXPORTED: "b" * 64, KEPT: "e" * 64}
COMPLETIONS = f"{RUN}/eval/gsm8k/trained/completions.parquet"
TEST = {"data/demo/gsm8k/test.parquet": "d" * 64}
STAGES: dict[str, tuple[tuple[str, ...], str | None]] = {  # what each reads and makes
    "sft": ((), SFT),
    "convert": ((SFT,), INITIAL),
    "train": ((INITIAL,), POLICY),
    "export": ((POLICY,), EXPORTED),
    "sample": ((EXPORTED,), None),
    "sample_kept": ((SFT, INITIAL, KEPT), None),
    "validate": ((SFT, INITIAL, KEPT, EXPORTED), None),
    "choose": ((INITIAL, KEPT, EXPORTED), f"{RUN}/chosen/manifest.json"),
}


def run_stage(project: Path, stage: str) -> None:
    read, made = STAGES[stage]
    inputs = {path: DIGESTS[path] for path in read}
    completions = {
        "sample_kept": COMPLETIONS.replace("trained", "step_20"),
        "validate": COMPLETIONS.replace("/eval/", "/validation/"),
    }.get(stage, COMPLETIONS)
    outputs = {made: DIGESTS.get(made, "f" * 64)} if made else {completions: "c" * 64}
    params = {"training": {"steps": 40}} if stage == "train" else {}
    record = stage_record(stage, inputs=inputs, outputs=[*outputs, f"{RUN}/{stage}.json"], params=params)
    contents = Contents(traces=[attempts_of(TABLE, range(1))] if stage == "train" else [])  # of step 10
    write(project, execution(record, outputs=outputs, configuration=CONFIGURATION), contents)


def score(project: Path) -> None:
    """Of completions that the trained policy has made."""
    provenance = Path(COMPLETIONS).with_name("completions.provenance.json")
    provenance.parent.mkdir(parents=True, exist_ok=True)
    write_json(provenance, {"inputs": {EXPORTED: DIGESTS[EXPORTED], **TEST, "src/dagrpo/utils/files.py": "f" * 64}})
    record = stage_record("score", inputs={COMPLETIONS: "c" * 64}, outputs=[f"{RUN}/eval/gsm8k/trained/scores.json"])
    made = execution(record, configuration=CONFIGURATION)
    contents = contents_of(replace(made, status="FAILED"))  # without figures
    contents.traces.append(attempts_of(TABLE.drop_columns(["step"]), range(1)))
    write(project, made, contents)


def links(project: Path) -> dict[str, Any]:
    """{stage: (names of models read, names of models made with their steps)}"""
    client = open_client(tracking_uri(project))
    names = {model.model_id: model.name for model in client.search_logged_models(["1"])}
    return {
        run.data.tags["stage"]: (
            [names[each.model_id] for each in run.inputs.model_inputs],
            [(names[each.model_id], each.step) for each in (run.outputs.model_outputs if run.outputs else ())],
        )
        for run in (client.get_run(found.info.run_id) for found in stage_runs(project))
    }


LINKS = {
    "sft": ([], [("base-seed-0", 0)]),
    "convert": (["base-seed-0"], []),
    "train": (["base-seed-0"], [("trained-seed-0", 40)]),
    "export": (["trained-seed-0"], [("trained-seed-0", 40)]),
    "sample": (["trained-seed-0"], []),
    "sample_kept": ([], []),  # a kept policy is no checkpoint's
    "validate": ([], []),
    "choose": ([], []),
}


def test_a_policy_is_an_output_of_what_made_it_and_an_input_of_what_reads_it(project: Path) -> None:
    for stage in STAGES:
        run_stage(project, stage)
    score(project)
    report(project, page())
    assert links(project) == {**LINKS, "score": (["trained-seed-0"], []), "report": ([], [])}
    models = open_client(tracking_uri(project)).search_logged_models(["1"])
    assert sorted((m.name, m.tags["manifest.sha256"][0], m.tags["manifest.trainer.sha256"][0]) for m in models) == [
        ("base-seed-0", "a", "1"),
        ("trained-seed-0", "b", "2"),
    ]
    words = {model.name: model.tags[NOTE] for model in models}
    assert words["trained-seed-0"].startswith(
        f"The policy of seed 0 after GRPO, step 40. Its weights stay in `{RUN}/exported`"
    )


@pytest.mark.parametrize(
    "order", [("report", *reversed(STAGES)), pytest.param((*reversed(STAGES), "report"), marks=pytest.mark.nightly)]
)
def test_in_whatever_order_it_is_told_a_policy_is_one_model(project: Path, order: tuple[str, ...]) -> None:
    for stage in order:
        run_stage(project, stage) if stage != "report" else report(project, page())
    found = links(project)
    made = {stage: [name for name, _ in found[stage][1]] for stage in STAGES}
    assert made == {stage: [name for name, _ in LINKS[stage][1]] for stage in STAGES}
    assert found["sample"][0] == ["trained-seed-0"]
    assert len(open_client(tracking_uri(project)).search_logged_models(["1"])) == 2


def test_a_scored_attempt_belongs_to_its_policy_and_one_of_later_training_to_none(project: Path) -> None:
    run_stage(project, "export")
    run_stage(project, "train")
    score(project)
    (scored, trained) = sorted(traces_in(project), key=lambda trace: "step" in trace.info.tags)
    (model,) = [
        model for model in open_client(tracking_uri(project)).search_logged_models(["1"]) if model.name.startswith("t")
    ]
    assert scored.info.trace_metadata["mlflow.modelId"] == model.model_id
    assert trained.info.tags["step"] == "10"
    assert "mlflow.modelId" not in trained.info.trace_metadata
    run = next(run for run in stage_runs(project) if run.data.tags["stage"] == "score")
    assert [entry.dataset.digest for entry in run.inputs.dataset_inputs] == ["d" * 36], "and to what it was asked"


def test_a_run_in_a_temporary_copy_is_recorded_in_its_repository_alone(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path_factory.mktemp("dvc-exp-run-temp")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("DVC_EXP_NAME", "slow-plum")
    report(project, page())
    assert len(open_client(tracking_uri(project)).search_logged_models(["1"])) == 2
    assert list(copy.iterdir()) == []
    assert "MLFLOW_TRACKING_URI" not in os.environ
