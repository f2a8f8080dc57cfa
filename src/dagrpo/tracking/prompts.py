"""Prompt forms of tasks in MLflow's registry, versioned by content."""

import re
from collections.abc import Mapping, Sequence

from mlflow.entities.model_registry import PromptVersion
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import PROMPT_EXPERIMENT_IDS_TAG_KEY
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.tracing.constant import TraceTagKey
from mlflow.tracing.utils.prompt import update_linked_prompts_tag
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.utils.files import digest_of

DIGEST = "prompt.sha256"
Messages = Sequence[Mapping[str, str]]


def prompt_name(task: str) -> str:
    """Return `gsm8k.prompt`: distinct among the registered models, which have names of experiments."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', task)}.prompt"


def bring_prompt(
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
    about = f"How the task {task} puts a problem to the policy, {offered}."  # MLflow's page shows this alone
    return client.create_prompt_version(name, [dict(message) for message in messages], about, {DIGEST: digest})


def link_prompt(client: MlflowClient, run_id: str, version: PromptVersion) -> None:
    """Link a prompt to a run. MlflowClient.link_prompt_version_to_run would use the global address."""
    tag = TraceTagKey.LINKED_PROMPTS
    now = client.get_run(run_id).data.tags.get(tag)
    linked = update_linked_prompts_tag(now, [version])
    if linked != now:
        client.set_tag(run_id, tag, linked)


def _make_prompt(client: MlflowClient, name: str, task: str) -> None:
    about = f"How the task {task} puts a problem to the policy. {{{{question}}}} stands for the problem."
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
