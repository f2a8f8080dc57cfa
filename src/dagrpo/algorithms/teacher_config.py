"""Section `algorithm.teacher`: the teacher model of distillation.

A loss or a term learns from its logprobs of the policy's own tokens.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.section import Section, require_commit

TEACHER = "teacher"  # the name of the teacher's folder, beside the model's
SOLUTION = "{solution}"  # in the teacher's prompt, replaced by the problem's solution
# A shorter form of the prompt of Self-Distilled Reasoner (arXiv 2601.18734).
_WITH_SOLUTION = (
    f"\n\nHere is a reference solution:\n{SOLUTION}\n\nAfter understanding it, solve the problem in your own words."
)


class Teacher(Section):
    source: Literal["none", "initial", "folder", "hub"] = Field(
        "none",
        description=(
            "none: no teacher; initial: the policy before training; folder: a local checkpoint; hub: a Hugging Face model. Its "
            "vocabulary must be the policy's."
        ),
    )
    folder: str | None = Field(
        None,
        description="A checkpoint in the Hugging Face layout with a manifest.json, such as results/<another>/runs/seed_0/exported.",
    )
    repository: str | None = Field(None, description="Hub repository, such as Qwen/Qwen2.5-7B-Instruct (source: hub).")
    revision: str | None = Field(
        None, description="Commit of that repository, 40 hex digits: a branch can move (source: hub)."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Type of a hub teacher's weights in its file; it computes in rollout.dtype."
    )
    prompt: Literal["plain", "with_solution"] = Field(
        "plain",
        description="Prompt of the teacher. plain: the policy's; with_solution: the policy's, followed by `solution`.",
    )
    solution: Annotated[str, Field(max_length=10_000)] = Field(
        _WITH_SOLUTION,
        description=f"Text after the problem in the teacher's prompt (prompt: with_solution); {SOLUTION} stands for its solution.",
    )

    @property
    def is_there(self) -> bool:
        """Return True if there is a teacher."""
        return self.source != "none"

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        required = {"folder": ("folder",), "hub": ("repository", "revision")}.get(self.source, ())
        for key in ("folder", "repository", "revision"):
            if (getattr(self, key) is not None) != (key in required):
                remedy = "give it" if key in required else "set it to null, or choose the source that reads it"
                raise UserError(
                    f"algorithm.teacher.source is {self.source} and algorithm.teacher.{key} is "
                    f"{'null' if key in required else 'given'}: {remedy}"
                )
        require_commit(self.revision, "algorithm.teacher.revision")
        if SOLUTION not in self.solution:
            raise UserError(
                f"algorithm.teacher.solution lacks {SOLUTION}, which is replaced by the problem's solution: insert it"
            )
        return self

    def check(self, experiment: Experiment) -> None:
        """Raise UserError if the teacher is an output of this experiment."""
        if self.is_there and f"results/{experiment.name}/" in (self.folder or ""):
            raise UserError(
                f"algorithm.teacher.folder is {self.folder}, which is an output of this experiment: give another experiment's "
                "folder, or set algorithm.teacher.source to initial"
            )
