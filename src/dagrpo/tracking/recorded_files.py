"""The files that a stage has logged: artifacts, tables, and the data sets it names. Brought twice, each is there once.

Files are replaced. (MlflowClient.log_table would append, so a table is written as a file here.)
"""

import json
from pathlib import PurePosixPath

import pandas as pd
import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag

from dagrpo.errors import UserError
from dagrpo.tracking.events import Event
from dagrpo.tracking.pages import MAX_DATASET_DIGEST
from dagrpo.tracking.recorded import Recorded

LOGGED_ARTIFACTS = "mlflow.loggedArtifacts"  # a run's tables, for MLflow's load_table and its table view


def bring_artifact(run: Recorded, event: Event) -> None:
    """To the stage's run; a file at the top of the report's also to the run of the whole, where people look for it."""
    with run.file(event) as path:
        folder = PurePosixPath(event["folder"])
        if folder.is_absolute() or ".." in folder.parts:
            raise UserError(f"{folder} is no folder of a run")
    run.client.log_artifact(run.run_id, str(path), event["folder"] or None)
    if run.stage == "report" and not event["folder"]:
        run.client.log_artifact(run.parent, str(path))


def bring_table(run: Recorded, event: Event) -> None:
    """The file that MlflowClient.log_table would write first, and its mark on the run."""
    file = f"{event['name']}.json"
    with run.file(event) as path:
        table = pd.DataFrame(pq.read_table(path).to_pydict())
        text = table.to_json(orient="split", index=False, date_format="iso")
    run.client.log_text(run.run_id, text, file)
    marks = json.loads(run.tags.get(LOGGED_ARTIFACTS, "[]"))
    if (mark := {"path": file, "type": "table"}) not in marks:
        run.client.set_tag(run.run_id, LOGGED_ARTIFACTS, json.dumps([*marks, mark]))


def bring_data_set(run: Recorded, event: Event) -> None:
    """As an input of the stage's run."""
    columns = [{"name": name, "type": kind, "required": True} for name, kind in event.get("columns", {}).items()]
    profile = {"num_rows": event.get("rows"), "bytes": event["bytes"], "sha256": event["digest"]}
    dataset = Dataset(
        name=event["name"],
        digest=event["digest"][:MAX_DATASET_DIGEST],
        source_type="local",
        source=json.dumps({"uri": event["path"]}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps(profile),
    )
    context = InputTag("mlflow.data.context", event["context"])
    run.client.log_inputs(run.run_id, [DatasetInput(dataset, [context])])
