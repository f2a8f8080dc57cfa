"""The page that the report makes for each seed, brought to the run of that seed."""

from mlflow.entities import Metric

from dagrpo.errors import UserError
from dagrpo.tracking.evaluation_sets import share_evaluation_sets
from dagrpo.tracking.events import Event
from dagrpo.tracking.names import metric_name
from dagrpo.tracking.pages import Page, bring_page, curve_points
from dagrpo.tracking.parents import describe, find_parent, settle_parent
from dagrpo.tracking.policies import bring_policies, register
from dagrpo.tracking.recorded import Recorded
from dagrpo.tracking.recorded_policies import left_out_of_an_old_server
from dagrpo.tracking.views import experiment_tags
from dagrpo.visible import one_line


def bring_page_of_seed(run: Recorded, event: Event) -> None:
    """To the run of that seed, which other stages may have made under another configuration, or nobody."""
    try:
        page = Page.model_validate(event["page"])
    except ValueError as error:
        raise UserError(f"a page of another version: {one_line(str(error), 200)}") from error
    client, experiment = run.client, run.experiment_id
    run_id = find_parent(client, experiment, run.start, event["seed"])
    describe(client, run_id, run.start)
    bring_page(client, run_id, page, _curves(run, event), event["time"])
    for name, value in experiment_tags(map(metric_name, page.figures)).items():
        client.set_experiment_tag(experiment, name, value)
    with left_out_of_an_old_server("problems"):
        share_evaluation_sets(client, experiment, page.data)
    if event["seed"] is not None:
        _bring_policies(run, run_id, page, event)
    settle_parent(client, run_id, event["time"])


def _curves(run: Recorded, event: Event) -> list[Metric]:
    if not event["curves"]:
        return []
    with run.file({"file": event["curves"]}) as path:
        return curve_points(path, event["time"])


def _bring_policies(run: Recorded, run_id: str, page: Page, event: Event) -> None:
    seed = str(event["seed"])
    with left_out_of_an_old_server("policies"):
        models = bring_policies(run.client, run.experiment_id, run_id, seed, page, event["time"])
        told = page.of_a_variation() if run.variation else page
        register(run.client, run.experiment, run_id, seed, models, told)
