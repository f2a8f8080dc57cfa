"""Policies as MLflow's logged models, identified by their manifest's sha256.

Nothing is uploaded: digest and path. A policy has one model in both layouts, Hugging Face's and the trainer's, whose manifests
differ: stage convert or export records which two belong together. In whatever order stages are recorded, there is one model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlflow.entities import LoggedModel, LoggedModelStatus, Metric

from dagrpo_mlflow.execution import DIGEST, Checkpoint, Execution, checkpoints_in
from dagrpo_mlflow.names import MAX_DATASET_DIGEST, metric_name
from dagrpo_mlflow.parents import NOTE
from dagrpo_mlflow.runs import Run, Runs

MODEL_TYPE = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of a policy on one task."""

    group: str  # eval/gsm8k
    data: str  # gsm8k/test
    digest: str  # of these problems
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """An evaluated policy."""

    checkpoint: Checkpoint | None  # None: a kept one, which no model stands for
    step: int
    scores: tuple[Score, ...]


def input_policy(runs: Runs, parent: Run, execution: Execution) -> str | None:
    """Return the id of the policy that a stage has read; None if it reads none, or converts it: `link_output_policy` links that.

    In the trainer's layout it is known since its conversion, or not at all.
    """
    checkpoint = _read_by(execution)
    if checkpoint is None or execution.converts:
        return None
    model = _model_of(runs, parent, checkpoint) if checkpoint.tag == DIGEST else _find(runs, checkpoint)
    return None if model is None else str(model.model_id)


def link_output_policy(runs: Runs, parent: Run, run: Run, execution: Execution) -> None:
    """Link the policy that a stage has made as an output of its run. A conversion makes the layout that is evaluated."""
    step = execution.record["params"].get("training", {}).get("steps", 0) if execution.stage == "train" else 0
    before = _read_by(execution) if execution.converts else None
    for checkpoint in checkpoints_in(execution.outputs):
        model = _model_of(runs, parent, checkpoint, step, before)
        if execution.converts:
            run.read(models=[model.model_id])
            step = int(model.params.get("step") or 0)
        if not execution.converts or checkpoint.tag == DIGEST:
            run.make(model.model_id, step)


def write_policies(runs: Runs, parent: Run, policies: Iterable[Policy], time_ms: int) -> None:
    """Give the models of a seed's policies their scores; in the run they are a curve from the base policy to the trained one."""
    for policy in policies:
        model = None if policy.checkpoint is None else _model_of(runs, parent, policy.checkpoint, policy.step)
        if model is not None:
            parent.make(model.model_id, policy.step)
        parent.log(
            points=[
                Metric(
                    metric_name(f"{score.group}/{name}"),
                    value,
                    time_ms,
                    policy.step,
                    model_id=None if model is None else model.model_id,
                    dataset_name=score.data,
                    dataset_digest=score.digest[:MAX_DATASET_DIGEST],
                    run_id=parent.run_id,
                )
                for score in policy.scores
                for name, value in score.values.items()
            ]
        )


def _read_by(execution: Execution) -> Checkpoint | None:
    if any(path.endswith("/kept/manifest.json") for path in execution.read):
        return None  # a kept policy, of which the others are but the beginning
    own = (each for each in checkpoints_in(execution.read) if each.seed == execution.seed)
    return next(own, None)


def _model_of(
    runs: Runs, parent: Run, checkpoint: Checkpoint, step: int = 0, also: Checkpoint | None = None
) -> LoggedModel:
    """Return the model of a checkpoint, created if missing, for the run of a seed. `also`: the same policy in the other layout."""
    both = [each for each in (checkpoint, also) if each is not None]
    tags = {each.tag: each.digest for each in both}
    model = next(filter(None, (_find(runs, each) for each in both)), None)
    if model is None:
        policy, seed, folder = checkpoint.policy, checkpoint.seed, checkpoint.evaluated
        model = runs.client.create_logged_model(
            runs.experiment_id,
            name=f"{policy}-seed-{seed}",
            source_run_id=parent.run_id,
            tags={**tags, "policy": policy, "seed": seed, NOTE: _about(checkpoint, step)},
            params={"folder": folder, **({"step": str(step)} if step else {})},
            model_type=MODEL_TYPE,
        )
        return _ready(runs, model)
    if missing := {tag: digest for tag, digest in tags.items() if tag not in model.tags}:
        runs.client.set_logged_model_tags(model.model_id, missing)
        model.tags.update(missing)
    return model


def _find(runs: Runs, checkpoint: Checkpoint) -> LoggedModel | None:
    def ask() -> LoggedModel | None:
        query = f"tags.`{checkpoint.tag}` = '{checkpoint.digest}'"
        models = runs.client.search_logged_models([runs.experiment_id], query, max_results=1)
        return _ready(runs, models[0]) if models else None

    model: LoggedModel | None = runs.once(f"model {checkpoint.digest}", ask)
    return model


def _ready(runs: Runs, model: LoggedModel) -> LoggedModel:
    if model.status == LoggedModelStatus.READY:
        return model
    return runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def _about(checkpoint: Checkpoint, step: int) -> str:
    """Return the first text on a model's page: Markdown."""
    when = "before GRPO" if checkpoint.policy == "base" else "after GRPO" + (f", step {step}" if step else "")
    return (
        f"The policy of seed {checkpoint.seed} {when}. Its weights stay in `{checkpoint.evaluated}`: MLflow has no copy. "
        f"`dagrpo verify {checkpoint.evaluated}` says whether they are still those with the digest {DIGEST}."
    )
