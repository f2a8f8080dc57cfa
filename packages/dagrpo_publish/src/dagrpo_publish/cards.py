"""Cards of a published policy and of its rollouts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.config.overlay import configuration_of
from dagrpo.core.escape import one_line
from dagrpo.data.task import get_task
from dagrpo.evaluation.choice import read_choice, sentence, spread_of, with_choice
from dagrpo.evaluation.config import CHOSEN
from dagrpo.evaluation.statistics import Estimate
from dagrpo.pipeline.accepted import acceptances_of
from dagrpo.pipeline.declaration import POLICIES
from dagrpo.pipeline.raw_inputs import CARD
from dagrpo.report.format import metric_label
from dagrpo.report.html import render_text
from dagrpo.report.times import circumstances
from dagrpo.utils.files import canonical_json, read_object, read_text, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo_publish.crate.finished import Finished

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

LONGEST = 300
TEXT_CLASSES = ("AutoModelForCausalLM", "AutoTokenizer")  # of transformers
PICTURE_CLASSES = ("AutoModelForImageTextToText", "AutoProcessor")
GENERATOR = "generator"
FOREIGN = "verifiers taskset"  # a generator of other people's rows


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A finished experiment, of which one seed's policy is published."""

    finished: Finished
    seed: int
    name: str  # of the model's repository, without its organisation
    organisation: str | None  # None: it goes to a folder
    license: str | None  # as the hub names it; None: not stated
    with_rollouts: bool
    policy: str = "trained"  # as in evaluation.policies
    restored: Path | None = None  # the checkpoint of a kept step

    @property
    def run(self) -> Path:
        """Return the folder of the seed's results."""
        return Path("results", self.finished.name, "runs", f"seed_{self.seed}")

    @property
    def checkpoint(self) -> Path:
        """Return the folder of the policy in the Hugging Face layout."""
        return self.restored or self.run / POLICIES[self.policy]

    @property
    def rollouts_name(self) -> str:
        """Return the name of the data set's repository."""
        return f"{self.name}-rollouts"

    @property
    def tasks(self) -> Sequence[str]:
        """Return the tasks that it was evaluated on."""
        return self.finished.params.experiment.evaluate

    @property
    def evaluated(self) -> list[str]:
        """Return the evaluated policies."""
        return sorted(path.parent.name for path in self.run.glob(f"eval/{self.tasks[0]}/*/scores.json"))

    @property
    def origin(self) -> str:
        """Return which step's policy it is, and why this one; "" for the last one and the base."""
        if self.policy in {"trained", "base"}:
            return ""
        if self.policy == CHOSEN:
            return f"{sentence(read_choice(self.run / 'chosen/choice.json'))} "
        step, steps = self.policy.removeprefix("step_"), self.finished.params.training.steps
        return f"This is the policy of step {step} of {steps}. Its publisher named the step: if for its score, that score flatters it. "

    def repository(self, name: str) -> str:
        """Return a repository's whole name, or its folder's."""
        return name if self.organisation is None else f"{self.organisation}/{name}"

    @cached_property
    def data(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the card of each task's prepared data."""
        tasks = self.finished.params.experiment.tasks
        return {task: read_object(Path("data", self.finished.name, task, CARD)) for task in tasks}

    @property
    def has_pictures(self) -> bool:
        """Return True if the policy reads pictures."""
        return any(get_task(each).images for each in self.data)

    def use_of(self, task: str) -> str:
        """Return the use of a task, in words."""
        return " and ".join(
            ["training"] * (task in self.finished.params.experiment.train_tasks) + ["evaluation"] * (task in self.tasks)
        )

    def are_generated(self, tasks: Sequence[str]) -> bool:
        """Return True if the texts of all these tasks are dagrpo's own: written by a generator, and not taken from other people's data."""
        cards = [self.data[task] for task in tasks]
        return all(each["origin"] == GENERATOR and not str(each["source"]).startswith(FOREIGN) for each in cards)


def model_card(publication: Publication) -> str:
    """Return README.md of the model: its metadata for the hub, then the page."""
    from huggingface_hub import ModelCardData

    finished, params = publication.finished, publication.finished.params
    metadata = ModelCardData(
        base_model=params.model.repository,
        datasets=_datasets(publication),
        eval_results=list(_results(publication)),
        library_name="transformers",
        license=publication.license,
        model_name=publication.name,
        pipeline_tag="image-text-to-text" if publication.has_pictures else "text-generation",
        tags=[
            "dagrpo",
            *(["grpo", "reinforcement-learning", params.algorithm.loss.name] if publication.policy != "base" else []),
        ],
    )
    summary = Path("results", finished.name, "report/summary.md")
    changed = configuration_of(params)["changed"]
    return _rendered(
        "model_card.md.j2",
        publication,
        metadata=metadata.to_yaml(),
        summary=read_text(summary, "run the stage report again").partition("\n")[2].strip(),
        # those that are not at their defaults, and some that always count
        parameters={key: _code(one_line(canonical_json(value), LONGEST)) for key, value in changed.items()},
        rewards=[name for name, config in params.reward.components.items() if config.counts],
        facts=circumstances(finished.accounts),
        digests=list(_digests(publication)),
        base=_base(publication),
        classes=PICTURE_CLASSES if publication.has_pictures else TEXT_CLASSES,
    )


def rollouts_card(publication: Publication) -> str:
    """Return README.md of the data set: its metadata for the hub, then the page."""
    from huggingface_hub import DatasetCardData

    configs = [
        {"config_name": "rollouts", "default": True, "data_files": "rollouts/*.parquet"},
        {
            "config_name": "evaluation",
            "data_files": [{"split": each, "path": f"evaluation/{each}/*.parquet"} for each in publication.evaluated],
        },
    ]
    metadata = DatasetCardData(
        license=publication.license,
        pretty_name=f"Rollouts of {publication.name}",
        source_datasets=_datasets(publication),
        tags=["dagrpo", "grpo", "rollouts"],
        task_categories=["text-generation"],
        configs=configs,
    )
    return _rendered("rollouts_card.md.j2", publication, metadata=metadata.to_yaml())


def _rendered(template: str, publication: Publication, **values: Any) -> str:
    return render_text(
        Path(__file__).with_name(template),
        publication=publication,
        params=publication.finished.params,
        experiment=publication.finished.name,
        data=publication.data,
        others=[task for task in publication.data if not publication.are_generated([task])],
        model=publication.repository(publication.name),
        rollouts=publication.repository(publication.rollouts_name),
        **values,
    )


def _code(text: str) -> str:
    """Return text as code in a cell of a table, whatever backticks and bars it has."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " * ("`" in text)
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def _datasets(publication: Publication) -> list[str] | None:
    sources = (get_task(each).source for each in publication.data)
    return sorted({source.repository for source in sources if source is not None}) or None


def _results(publication: Publication) -> Iterator["EvalResult"]:
    """Yield the scores of this seed's policy, in percent, for the hub's table of results."""
    from huggingface_hub import EvalResult

    choices = [read_choice(publication.run / "chosen/choice.json")] if publication.policy == CHOSEN else []
    for task in publication.tasks if publication.policy in publication.evaluated else ():
        source = get_task(task).source
        summary = read_object(publication.run / "eval" / task / publication.policy / "scores.json")
        k = f"mean_at_{summary['mean_at_k']['k']}" if summary.get("samples_per_problem") else None
        for name, found in {"greedy": summary["greedy"], **({k: summary["mean_at_k"]} if k else {})}.items():
            plain = Estimate(**{key: found[key] for key in ("value", "low", "high")})
            estimate = with_choice(plain, spread_of(choices, task, name), summary["confidence"])
            low, high = 100 * estimate.low, 100 * estimate.high
            yield EvalResult(
                task_type="text-generation",
                dataset_type=source.repository if source is not None else task,
                dataset_name=task,
                dataset_config=source.configuration if source is not None else None,
                dataset_split="test",
                dataset_revision=source.revision or None if source is not None else None,
                metric_type="accuracy",
                metric_name=f"{metric_label(name)} in percent ({100 * summary['confidence']:g}% interval {low:.1f} to {high:.1f})",
                metric_value=round(100 * estimate.value, 2),
            )


def _base(publication: Publication) -> str:
    model = publication.finished.params.model
    if model.source == "hub":
        return f"[{model.repository}](https://huggingface.co/{model.repository}) at commit `{model.revision}`"
    return "a GGUF file" if model.source == "gguf" else "random weights: a fresh model of a few layers"


def _digests(publication: Publication) -> Iterator[tuple[str, str]]:
    finished = publication.finished
    yield "weights, all tensors", tensor_digest_of(publication.checkpoint)
    yield f"the checkpoint's {MANIFEST}", sha256_of(publication.checkpoint / MANIFEST)
    yield "the base policy's weights", tensor_digest_of(publication.run / "sft")
    for task in publication.data:
        for split in ("train", "test"):
            path = Path("data", finished.name, task, f"{split}.parquet")
            yield f"prepared data, {task}, {split}", sha256_of(path)
    for record in finished.records:
        yield from ((f"raw data, {file.path}", file.digest) for file in finished.raw(record))
    yield "code of the stage train", finished.record("train").code
    for acceptance in acceptances_of({record.code for record in finished.records}):
        yield "an edit that was accepted without running again", str(acceptance)
