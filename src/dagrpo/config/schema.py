"""The whole of params.yaml, parsed with actionable error messages."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from dagrpo.algorithms.advantages import check_advantage
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.corrections import check_correction
from dagrpo.algorithms.losses import check_loss
from dagrpo.algorithms.teacher_config import TEACHER
from dagrpo.algorithms.terms import check_terms
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.config.mistakes import mistakes
from dagrpo.core.errors import UserError
from dagrpo.core.escape import sentences
from dagrpo.core.experiment import Experiment
from dagrpo.core.section import Section
from dagrpo.data.config import Data
from dagrpo.data.section import GeneratedTask
from dagrpo.engine.checks import check_engines
from dagrpo.evaluation.config import Difficulty, Evaluation
from dagrpo.models.config import Model
from dagrpo.report.config import Report
from dagrpo.rewards.components import check_components
from dagrpo.rewards.config import Reward
from dagrpo.rollout.agents import check_agent
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config import Training
from dagrpo.trainer.lora_config import untrained_tower
from dagrpo.trainer.runtime_config import Runtime
from dagrpo.trainer.sft_config import Sft
from dagrpo.utils.yaml_text import read_yaml


class Params(Section):
    """The whole of params.yaml. Every section but `runtime` changes results; output folders are nowhere in it."""

    experiment: Experiment = Field(Experiment(), description="Name, seeds and tasks of the experiment.")
    data: Data = Field(Data(), description="Where raw data comes from.")
    model: Model = Field(Model(), description="The policy before any training.")
    sft: Sft = Field(Sft(), description="Supervised fine-tuning before GRPO.")
    difficulty: Difficulty = Field(Difficulty(), description="How hard each train problem is, by pass rate.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="The format of the trainer's checkpoints.")
    rollout: Rollout = Field(Rollout(), description="How completions are sampled during training.")
    reward: Reward = Field(Reward(), description="The reward of a completion.")
    algorithm: Algorithm = Field(Algorithm(), description="The GRPO objective.")
    training: Training = Field(Training(), description="Steps, batches and the optimizer of GRPO.")
    evaluation: Evaluation = Field(Evaluation(), description="How the base and the trained policy are compared.")
    report: Report = Field(Report(), description="Contents of the report.")
    runtime: Runtime = Field(Runtime(), description="Parameters that change speed, memory or place, and no result.")

    @model_validator(mode="after")
    def _completions_have_room(self) -> Self:
        positions = self.model.fresh.max_position_embeddings
        longest = self.training.max_prompt_tokens + max(
            self.rollout.max_new_tokens, self.evaluation.sampling.max_new_tokens
        )
        if self.model.source == "fresh" and longest > positions:
            raise UserError(
                f"training.max_prompt_tokens plus max_new_tokens is {longest}, but model.fresh.max_position_embeddings is "
                f"{positions}: raise the latter or shorten one of the former"
            )
        return self

    @model_validator(mode="after")
    def _folders_are_apart(self) -> Self:
        if self.model.name == TEACHER:
            raise UserError(f"model.name is {TEACHER}, the folder of algorithm.teacher: give the model another name")
        return self

    @model_validator(mode="after")
    def _a_vision_tower_is_there(self) -> Self:
        if self.model.may_take_pictures:
            return self._with_a_tower()
        changed = {
            "training.vision": self.training.vision == "frozen",
            "training.vision_learning_rate": self.training.vision_learning_rate is not None,
            "training.lora.vision": self.training.lora.vision,
            "sft.vision": self.sft.vision == "frozen",
            "sft.lora.vision": self.sft.lora.vision,
            "runtime.training.micro_batch_patches": self.runtime.training.micro_batch_patches is not None,
        }
        for name, is_changed in changed.items():
            if is_changed:
                raise UserError(
                    f"{name} is of a vision tower, and the model has none: leave it out, or choose a vision-language model "
                    "(model.fresh.vision.family, or one of the hub)"
                )
        return self

    def _with_a_tower(self) -> Self:
        """Check the parameters of a fresh model with a vision tower; one from the hub is checked when it is loaded."""
        for name, section in (("training", self.training), ("sft", self.sft)):
            outside = section.lora.is_on and not section.lora.vision
            if self.model.source == "fresh" and outside and section.vision == "trained":
                raise UserError(untrained_tower(name))
        if self.model.source == "fresh" and self.runtime.training.share_prompts:
            raise UserError(
                "runtime.training.share_prompts works with text alone, and this model takes pictures: set it to false"
            )
        for name, layout in (("training", self.runtime.training.layout), ("sft", self.runtime.sft.layout)):
            if self.model.source == "fresh" and layout == "packed":
                raise UserError(
                    f"runtime.{name}.layout packed works with text alone, and this model takes pictures: set it to padded or null"
                )
        return self

    @model_validator(mode="after")
    def _what_is_limited_is_computed(self) -> Self:
        if self.runtime.training.micro_batch_patches is not None and self.training.vision == "frozen":
            raise UserError(
                "runtime.training.micro_batch_patches is for a vision tower that is trained, and training.vision is frozen: set "
                "runtime.training.micro_batch_patches to null"
            )
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.data.pass_rates and f"results/{self.experiment.name}/" in self.data.pass_rates:
            raise UserError(
                f"data.pass_rates is {self.data.pass_rates}, which this experiment makes out of the data itself: give "
                "another experiment's file, or choose with training.min_pass_rate and max_pass_rate"
            )
        if self.data.max_prompt_tokens is not None and self.data.max_prompt_tokens > self.training.max_prompt_tokens:
            raise UserError(
                f"data.max_prompt_tokens ({self.data.max_prompt_tokens}) keeps prompts that training.max_prompt_tokens "
                f"({self.training.max_prompt_tokens}) refuses: lower the former or raise the latter"
            )
        return self

    @model_validator(mode="after")
    def _plugins_take_the_other_parameters(self) -> Self:
        """Call the check of every selected plug-in, since only its own package knows its requirements."""
        check_components(self)
        check_advantage(self)
        check_loss(self)
        check_correction(self)
        check_terms(self)
        check_agent(self)
        check_engines(self)
        if (
            self.checkpoint.format not in FORMATS.own_names()
        ):  # dagrpo's own, whose import takes seconds, take all models
            FORMATS.get(self.checkpoint.format).check(self)
        for _, section in self.data:
            if isinstance(section, GeneratedTask):
                section.check(self)
        return self

    @model_validator(mode="after")
    def _a_sample_has_others_to_be_compared_with(self) -> Self:
        filters = self.training.zero_variance_filter or self.training.dynamic_sampling.wants_spread
        if self.training.samples_per_prompt == 1 and filters:
            raise UserError(
                "training.samples_per_prompt is 1, and a single sample differs from no other, so that training.zero_variance_filter "
                "and dynamic_sampling would leave out everything: set zero_variance_filter to false, and max_rounds and oversampling "
                "to 1 (or spread_of to null where max_aborts is above 0), or training.samples_per_prompt to 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _only_what_runs_freely_is_cut_off(self) -> Self:
        aborts = self.training.dynamic_sampling.max_aborts
        if aborts and self.rollout.deterministic:
            raise UserError(
                f"training.dynamic_sampling.max_aborts is {aborts}, but rollout.deterministic is true, so that which prompts a batch "
                "has may not depend on how long anything takes: set rollout.deterministic to false, or max_aborts to 0"
            )
        return self

    @model_validator(mode="after")
    def _the_divergence_is_of_the_policy_that_sampled(self) -> Self:
        kl = self.algorithm.kl
        if self.training.staleness and kl.coefficient and kl.corrected:
            raise UserError(
                f"training.staleness is {self.training.staleness}, but algorithm.kl.corrected multiplies by the ratio to the policy "
                "at the beginning of the step, which is not the one that sampled then: set algorithm.kl.corrected to false, or "
                "training.staleness to 0"
            )
        return self

    @model_validator(mode="after")
    def _the_teacher_is_not_made_by_this_experiment(self) -> Self:
        teacher = self.algorithm.teacher
        if teacher.is_there and f"results/{self.experiment.name}/" in (teacher.folder or ""):
            raise UserError(
                f"algorithm.teacher.folder is {teacher.folder}, which this experiment makes itself: give another experiment's "
                "folder, or set algorithm.teacher.source to initial"
            )
        return self

    @model_validator(mode="after")
    def _processes_divide_batches(self) -> Self:
        if self.sft.batch_size % self.runtime.sft.processes:
            raise UserError(
                f"runtime.sft.processes ({self.runtime.sft.processes}) does not divide sft.batch_size "
                f"({self.sft.batch_size}): change one of them"
            )
        completions = self.training.prompts_per_step // self.training.mini_batches * self.training.samples_per_prompt
        if completions % self.runtime.training.processes:
            raise UserError(
                f"runtime.training.processes ({self.runtime.training.processes}) does not divide the {completions} completions "
                "of a mini-batch (prompts_per_step / mini_batches * samples_per_prompt): change one of them"
            )
        return self


def _keys(section: Section, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a section, including those of its parts."""
    for name in type(section).model_fields:
        yield prefix + name
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{name}.")
        if isinstance(value, Mapping):
            for each, part in value.items():
                if isinstance(part, Section):
                    yield from _keys(part, f"{prefix}{name}.{each}.")


def all_keys() -> list[str]:
    """List every dotted key of params.yaml with its defaults, in the schema's order."""
    return list(_keys(Params()))


def parse(values: Mapping[str, Any], source: str = "params.yaml") -> Params:
    """Check values against the schema. Raises UserError with one message per mistake, or the first ones and their number."""
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        found = list(mistakes(error.errors(include_url=False)))
    known = all_keys()
    raise UserError(sentences((mistake.sentence(source, known) for mistake in found), len(found)))


def read_params(path: Path) -> Params:
    """Read and check a params.yaml."""
    return parse(read_yaml(path), str(path))
