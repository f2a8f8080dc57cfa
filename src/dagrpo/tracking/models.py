"""Policies as MLflow's logged models, identified by their manifest's sha256.

Nothing is uploaded: digest and path. A policy has one model in both layouts, Hugging Face's and the trainer's, whose manifests
differ: stage convert or export records which two belong together. In whatever order stages are recorded, there is one model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.entities import LoggedModel, LoggedModelStatus

from dagrpo.tracking.checkpoints import DIGEST, TRAINER_DIGEST, Checkpoint, checkpoints_in
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.parents import NOTE
from dagrpo.tracking.runs import Run, Runs

MODEL_TYPE = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of one experiment, made for the run of one seed."""

    runs: Runs
    run_id: str
    seed: str

    def of(self, checkpoint: Checkpoint, step: int | None = None, also: Checkpoint | None = None) -> LoggedModel:
        """Return the model of a checkpoint, created if missing. `also`: the same policy in the other layout."""
        both = [each for each in (checkpoint, also) if each is not None]
        digests = {each.place.tag: each.digest for each in both}
        existing = next((model for each in both if (model := self.find(each.digest, each.place.tag)) is not None), None)
        if existing is None:
            return self.make(checkpoint.place.policy, checkpoint.evaluated, digests, step)
        missing = {tag: digest for tag, digest in digests.items() if tag not in existing.tags}
        if missing:
            self.runs.client.set_logged_model_tags(existing.model_id, missing)
            existing.tags.update(missing)
        return existing

    def find(self, digest: str, tag: str) -> LoggedModel | None:
        """Find a model by the digest of one layout, and the tag of that layout."""

        def ask() -> LoggedModel | None:
            query = f"tags.`{tag}` = '{digest}'"
            models = self.runs.client.search_logged_models([self.runs.experiment_id], query, max_results=1)
            return self._ready(models[0]) if models else None

        model: LoggedModel | None = self.runs.once("model", digest, ask=ask)
        return model

    def make(self, policy: str, folder: str, digests: Mapping[str, str], step: int | None) -> LoggedModel:
        """Create a model. `digests`: by the tag of the layout."""
        model = self.runs.client.create_logged_model(
            self.runs.experiment_id,
            name=f"{policy}-seed-{self.seed}",
            source_run_id=self.run_id,
            tags={**digests, "policy": policy, "seed": self.seed, NOTE: about(policy, self.seed, folder, step)},
            params={"folder": folder, **({} if step is None else {"step": str(step)})},
            model_type=MODEL_TYPE,
        )
        return self._ready(model)

    def _ready(self, model: LoggedModel) -> LoggedModel:
        if model.status == LoggedModelStatus.READY:
            return model
        return self.runs.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def about(policy: str, seed: str, folder: str, step: int | None) -> str:
    """Return the first text on a model's page: Markdown."""
    when = "before GRPO" if policy == "base" else "after GRPO" + (f", step {step}" if step else "")
    return (
        f"The policy of seed {seed} {when}. Its weights stay in `{folder}`: MLflow has no copy. "
        f"`dagrpo verify {folder}` says whether they are still those with the digest {DIGEST}."
    )


def input_policy(models: Models, execution: Execution) -> LoggedModel | None:
    """Return the policy that a stage has read; None if it reads none.

    For a stage that converts, `link_output_policy` links it. In the trainer's layout it is known since that conversion, or not at
    all.
    """
    checkpoints = [each for each in checkpoints_in(execution.read) if each.seed == models.seed]
    if not checkpoints or execution.converts:
        return None
    first = checkpoints[0]
    return models.of(first) if first.place.tag == DIGEST else models.find(first.digest, TRAINER_DIGEST)


def link_output_policy(models: Models, run: Run, execution: Execution, step: int | None) -> None:
    """Link the policy that a stage has made as an output of its run. A conversion makes the layout that is evaluated."""
    if not execution.converts:
        for checkpoint in checkpoints_in(execution.outputs):
            run.make(models.of(checkpoint, step).model_id, step or 0)
        return
    before = next((each for each in checkpoints_in(execution.read) if each.seed == models.seed), None)
    for checkpoint in checkpoints_in(execution.outputs):
        model = models.of(checkpoint, also=before)
        run.read(models=[model.model_id])
        if checkpoint.place.tag == DIGEST:
            run.make(model.model_id, _step_of(model))


def _step_of(model: LoggedModel) -> int:
    step = model.params.get("step", "")
    return int(step) if step.isdecimal() else 0
