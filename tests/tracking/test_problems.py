"""What an evaluation asks is in MLflow once: the problems as a data set, the form in which they are put as a prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracing.client import TracingClient
from tests.tracking.conftest import execution, parent_runs, stage_record, stage_runs, write

from dagrpo.core.types import Row
from dagrpo.data.schema import to_table
from dagrpo.data.task import chat
from dagrpo.tracking.contents import Contents, DataSet
from dagrpo.tracking.problems import prompts_of
from dagrpo.tracking.store import open_client
from dagrpo.tracking.store_address import tracking_uri
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import write_parquet

SYSTEM = "You are an expert."


def task_row(index: int, question: str, **changes: Any) -> Row:
    content: dict[str, Any] = {
        "prompt": chat(f"{question} Answer after ####.", SYSTEM),
        "question": question,
        "answer": "",
    }
    about = {
        "task": "gsm8k",
        "split": "test",
        "index": index,
        "data_source": "openai/gsm8k",
        "ground_truth": str(index),
    }
    return Row(**(content | about | changes))


def write_split(*task_rows: Row) -> Path:
    path = Path("data/demo/gsm8k/test.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, to_table(task_rows))
    return path


def sample(split: Path, **changes: Any) -> None:
    data = DataSet(name="gsm8k/test", digest=sha256_of(split), path=split, context="evaluation")
    contents = Contents(data_sets=[data], problems=[(data, prompts_of(split))])
    write(Path.cwd(), execution(stage_record("sample", **changes)), contents)


def data_sets(project: Path) -> list[tuple[str, list[Any]]]:
    """Every evaluation data set with its records."""
    store = TracingClient(tracking_uri(project)).store
    found = []
    for data in open_client(tracking_uri(project)).search_datasets():
        records, _ = store._load_dataset_records(data.dataset_id, max_results=None)
        found.append((data.name, sorted((r.inputs["question"], r.expectations["ground_truth"]) for r in records)))
    return found


def versions(project: Path) -> list[tuple[int, Any]]:
    found = open_client(tracking_uri(project)).search_prompt_versions("gsm8k.prompt")
    return sorted((version.version, version.template) for version in found)


def test_held_out_problems_are_an_evaluation_data_set_of_the_experiment(project: Path) -> None:
    split = write_split(task_row(0, "How many?"), task_row(1, "How far?"))
    sample(split)
    digest = sha256_of(split)
    assert data_sets(project) == [(f"gsm8k/test@{digest[:8]}", [("How far?", "1"), ("How many?", "0")])]
    (data,) = open_client(tracking_uri(project)).search_datasets(["1"])
    assert (data.tags["sha256"], data.tags["problems"]) == (digest, "2 of 2")


def test_the_form_of_a_task_is_a_prompt_of_the_run(project: Path) -> None:
    sample(write_split(task_row(0, "How many?"), task_row(1, "How far?")))
    form = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "{{question}} Answer after ####."}]
    assert versions(project) == [(1, form)]
    for run in (*stage_runs(project), *parent_runs(project).values()):
        assert json.loads(run.data.tags["mlflow.linkedPrompts"]) == [{"name": "gsm8k.prompt", "version": "1"}]
    (prompt,) = open_client(tracking_uri(project)).search_prompts("experiment_id = '1'")
    assert prompt.name == "gsm8k.prompt"


@pytest.mark.nightly
def test_recorded_twice_and_by_every_seed_they_are_there_once(project: Path) -> None:
    split = write_split(task_row(0, "How many?"), task_row(1, "How far?"))
    for seed in (0, 1, 0, 1):
        sample(split, seed=seed)
    assert [len(records) for _, records in data_sets(project)] == [2]
    assert len(versions(project)) == 1


def test_another_form_is_another_version_and_other_problems_another_data_set(project: Path) -> None:
    sample(write_split(task_row(0, "How many?")))
    sample(write_split(task_row(0, "How many?", prompt=chat("How many?"))))
    assert [version for version, _ in versions(project)] == [1, 2]
    assert len(data_sets(project)) == 2


def test_two_experiments_with_the_same_problems_share_them(project: Path) -> None:
    split = write_split(task_row(0, "How many?"))
    sample(split)
    sample(split, experiment="other")
    client = open_client(tracking_uri(project))
    assert len(client.search_datasets()) == 1
    assert len(client.search_datasets(["1"])) == len(client.search_datasets(["2"])) == 1
    assert len(client.search_prompts("experiment_id = '2'")) == 1


def test_problems_that_differ_in_their_picture_alone_are_two(project: Path) -> None:
    split = write_split(task_row(0, "What is this?", images=(b"a",)), task_row(1, "What is this?", images=(b"b",)))
    sample(split)
    assert data_sets(project)[0][1] == [("What is this?", "0"), ("What is this?", "1")]


def test_a_task_whose_problems_have_no_one_form_has_no_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    split = write_split(task_row(0, "How many?"), task_row(1, "How far?", prompt=chat("Say how far.")))
    assert prompts_of(split)["prompt"] == []


def test_a_model_with_the_name_of_a_prompt_costs_the_prompt_alone(project: Path) -> None:
    client = open_client(tracking_uri(project))
    client.create_registered_model("gsm8k.prompt")
    sample(write_split(task_row(0, "How many?")))
    assert len(data_sets(project)) == 1
