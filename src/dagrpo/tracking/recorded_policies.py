"""The policies that a stage has read and made, what it was asked and what it answered: models, problems, prompts, traces."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode
from mlflow.tracing.client import TracingClient

from dagrpo.files import read_json
from dagrpo.tracking.evaluation_sets import bring_evaluation_set
from dagrpo.tracking.events import Event
from dagrpo.tracking.models import Models, bring_made, bring_read
from dagrpo.tracking.problems import Problems
from dagrpo.tracking.prompts import bring_prompt, link_prompt
from dagrpo.tracking.recorded import Recorded
from dagrpo.tracking.traces import log_traces, made_of

logger = logging.getLogger(__name__)


def bring_policy_made(run: Recorded, event: Event) -> None:
    """What the stage has read and made, once its outputs are there."""
    bring_policy_read(run)
    step = run.record["params"].get("training", {}).get("steps") if run.stage == "train" else 0
    with left_out_of_an_old_server("policies"):
        bring_made(_models(run), run.run_id, run.stage, run.read, event["digests"], step)


def bring_policy_read(run: Recorded) -> str | None:
    """The id of the policy that the stage has read, which becomes an input of its run."""
    model = None
    with left_out_of_an_old_server("policies"):
        model = bring_read(_models(run), run.run_id, run.stage, run.read)
    return None if model is None else str(model.model_id)


def bring_problems(run: Recorded, event: Event) -> None:
    """The problems of an evaluation, and the form in which its task puts them."""
    experiment, task = run.experiment_id, event["name"].partition("/")[0]
    with run.file(event) as path:
        problems = Problems.model_validate(read_json(path))
    with left_out_of_an_old_server("problems"):
        bring_evaluation_set(run.client, experiment, event["name"], event["digest"], problems)
        if problems.prompt:
            version = bring_prompt(run.client, experiment, task, problems.prompt, problems.tools)
            for run_id in (run.run_id, run.parent):
                link_prompt(run.client, run_id, version)


def bring_traces(run: Recorded, event: Event) -> None:
    """Attempts, as traces of the run and of the policy that it has read."""
    experiment, model_id = run.experiment_id, bring_policy_read(run)
    with run.file(event) as path:
        traces = made_of(
            read_json(path)["traces"],
            experiment=experiment,
            run_id=run.run_id,
            name=f"{run.folder.name}/{event['file']}",
            time_ms=event["time"],
            model_id=model_id,
        )
    log_traces(TracingClient(run.client.tracking_uri), traces, experiment)


def _models(run: Recorded) -> Models:
    return Models(client=run.client, experiment_id=run.experiment_id, run_id=run.parent, seed=run.seed)


@contextmanager
def left_out_of_an_old_server(what: str) -> Iterator[None]:
    """A server that knows no such thing goes without it."""
    try:
        yield
    except NotImplementedError as error:
        logger.warning("the %s of a run are left out: %s", what, error)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(ENDPOINT_NOT_FOUND):
            raise
        logger.warning("the %s of a run are left out: %s", what, error)
