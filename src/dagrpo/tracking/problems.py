"""Problems and prompt forms of evaluations in MLflow.

The problems of a test split are an evaluation data set, one for each content, shared by all experiments that are evaluated on it. The
prompt form of a task is a prompt in the registry, with a version for each content.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import EvaluationDataset
from mlflow.entities.model_registry import PromptVersion
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import PROMPT_EXPERIMENT_IDS_TAG_KEY
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import TraceTagKey
from mlflow.tracing.utils.prompt import update_linked_prompts_tag
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible
from dagrpo.tracking.runs import Run, Runs
from dagrpo.utils.files import digest_of

LONGEST = 10_000  # characters of one text
MOST_PROBLEMS = 2000  # MLflow takes some milliseconds for each
COLUMNS = ("prompt", "extra_info", "reward_model", "tools", "images")
QUESTION = "{{question}}"  # a variable, as MLflow writes one in a prompt
Row = Mapping[str, Any]
SHA256 = "sha256"
RECORDS_PER_BATCH = 500
SHORT = 8  # hex digits of a digest in a name
DIGEST = "prompt.sha256"
Messages = Sequence[Mapping[str, str]]


def prompts_of(split: Path) -> dict[str, Any]:
    """Return a file's problems: the first ones and their total number, the prompt form, the tools. The file has the row contract.

    prompt: chat messages; [] if the rows have no common form.
    """
    columns = [name for name in COLUMNS if name in pq.read_schema(split).names]
    table = pq.read_table(split, columns=columns)
    rows = table.slice(0, MOST_PROBLEMS).to_pylist()
    return {
        "of": table.num_rows,
        "records": [record_of(row) for row in rows],
        "prompt": prompt_form(rows),
        "tools": sorted({tool for row in rows for tool in row.get("tools", ())}),
    }


def record_of(row: Row) -> dict[str, Any]:
    """Return one problem. Pictures are named by their sha256, since problems may differ in them alone."""
    pictures = [hashlib.sha256(picture["bytes"]).hexdigest() for picture in row.get("images", ())]
    question = {"question": visible(row["extra_info"]["question"], LONGEST)}
    return {
        "inputs": question | ({"pictures": pictures} if pictures else {}),
        "expectations": {"ground_truth": visible(row["reward_model"]["ground_truth"], LONGEST)},
    }


def prompt_form(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the common chat messages with `{{question}}` in place of each problem's; [] if the rows have no common form."""
    forms = {tuple(_form(row)) for row in rows}
    if len(forms) != 1:
        return []
    (form,) = forms
    return [{"role": role, "content": content} for role, content in form]


def _form(row: Row) -> list[tuple[str, str]]:
    question = row["extra_info"]["question"]
    return [
        (message["role"], visible(message["content"].replace(question, QUESTION, 1) if question else "", LONGEST))
        for message in row["prompt"]
    ]


def set_name(name: str, digest: str) -> str:
    """Return a data set's unique name, by which MLflow finds it: `gsm8k/test@1a2b3c4d`."""
    if "'" in name or '"' in name:
        raise UserError(f"{name} has a quotation mark in its name")
    return f"{name}@{digest[:SHORT]}"


def write_evaluation_set(runs: Runs, name: str, digest: str, problems: Mapping[str, Any]) -> EvaluationDataset:
    """Return the data set with the problems of a test split, as from problems.prompts_of; written if missing."""
    client, experiment_id, records = runs.client, runs.experiment_id, problems["records"]
    data = _find(client, set_name(name, digest), digest)
    if data is None:
        tags = {SHA256: digest, "split": name, "problems": f"{len(records):,} of {problems['of']:,}"}
        data = client.create_dataset(set_name(name, digest), experiment_id, tags)
    else:
        _add(client, data, experiment_id)
    if _count(data) < len({json.dumps(record["inputs"], sort_keys=True) for record in records}):
        store = TracingClient(client.tracking_uri).store  # EvaluationDataset.merge_records asks the global address
        for first in range(0, len(records), RECORDS_PER_BATCH):
            store.upsert_dataset_records(data.dataset_id, records[first : first + RECORDS_PER_BATCH])
    return data


def share_evaluation_sets(runs: Runs, data: Iterable[Mapping[str, str]]) -> None:
    """Show an experiment the data sets of others with the same content, after a cache hit on their outputs."""

    def share(name: str, digest: str) -> EvaluationDataset | None:
        data_set = _find(runs.client, set_name(name, digest), digest)
        if data_set is not None:
            _add(runs.client, data_set, runs.experiment_id)
        return data_set

    for each in data:
        if each["context"] == "evaluation":
            name, digest = each["name"], each["digest"]
            runs.once("problems", name, digest, ask=partial(share, name, digest))


def _find(client: MlflowClient, name: str, digest: str) -> EvaluationDataset | None:
    sets = client.search_datasets(filter_string=f"name = '{name}'")
    return next((each for each in sets if (each.tags or {}).get(SHA256) == digest), None)


def _add(client: MlflowClient, data: EvaluationDataset, experiment_id: str) -> None:
    own = client.search_datasets([experiment_id], f"name = '{data.name}'")
    if data.dataset_id not in {each.dataset_id for each in own}:
        client.add_dataset_to_experiments(data.dataset_id, [experiment_id])


def _count(data: EvaluationDataset) -> int:
    return int(json.loads(data.profile)["num_records"]) if data.profile else 0


def prompt_name(task: str) -> str:
    """Return `gsm8k.prompt`: distinct among the registered models, which have names of experiments."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', task)}.prompt"


def write_prompt(
    client: MlflowClient, experiment_id: str, task: str, messages: Messages, tools: Sequence[str]
) -> PromptVersion:
    """Return the version with this content, created if missing. Raises UserError if a model has the name."""
    name, digest = prompt_name(task), digest_of([list(messages), list(tools)])
    _make_prompt(client, name, task)
    _show_in(client, name, experiment_id)
    for version in client.search_prompt_versions(name):
        if (version.tags or {}).get(DIGEST) == digest:
            return version
    offered = f"with the tools {', '.join(tools)}" if tools else "without tools"
    about = f"Prompt of the task {task}, {offered}."  # MLflow's page shows this alone
    return client.create_prompt_version(name, [dict(message) for message in messages], about, {DIGEST: digest})


def link_prompt(run: Run, version: PromptVersion) -> None:
    """Link a prompt to a run. MlflowClient.link_prompt_version_to_run would use the global address."""
    tag = TraceTagKey.LINKED_PROMPTS
    run.log(tags={tag: update_linked_prompts_tag(run.tags.get(tag), [version])})


def _make_prompt(client: MlflowClient, name: str, task: str) -> None:
    about = f"Prompt of the task {task}. {{{{question}}}} stands for the problem."
    try:
        client.create_prompt(name, about)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


def _show_in(client: MlflowClient, name: str, experiment_id: str) -> None:
    """Add the experiment's id to the prompt's tag: MLflow lists a prompt under the ids in it, between commas."""
    prompt = client.get_prompt(name)
    if prompt is None:
        raise UserError(f"the registered model {name} has the name of a prompt: rename it")
    ids = [each for each in prompt.tags.get(PROMPT_EXPERIMENT_IDS_TAG_KEY, "").split(",") if each]
    if experiment_id not in ids:
        client.set_prompt_tag(name, PROMPT_EXPERIMENT_IDS_TAG_KEY, f",{','.join([*ids, experiment_id])},")
