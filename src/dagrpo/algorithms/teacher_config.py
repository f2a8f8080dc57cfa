"""Section `algorithm.teacher`: the teacher model of distillation.

A loss or a term learns from its logprobs of the policy's own tokens.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section, require_commit

TEACHER = "teacher"  # the name of its folder, beside that of the model
SOLUTION = "{solution}"  # in the text that a teacher reads: where the problem's own solution stands
# As in Self-Distilled Reasoner (arXiv 2601.18734), which says it with more words.
_WITH_SOLUTION = (
    f"\n\nHere is a reference solution:\n{SOLUTION}\n\nAfter understanding it, solve the problem in your own words."
)


class Teacher(Section):
    source: Literal["none", "initial", "folder", "hub"] = Field(
        "none",
        description=(
            "none: no teacher; initial: the policy that training begins with; folder: an existing checkpoint; hub: a "
            "Hugging Face model. It must have the policy's vocabulary."
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
        "bfloat16", description="Type in which a hub teacher's weights are kept; it computes in rollout.dtype."
    )
    prompt: Literal["plain", "with_solution"] = Field(
        "plain", description="The teacher's prompt: the policy's, or that and `solution`."
    )
    solution: Annotated[str, Field(max_length=10_000)] = Field(
        _WITH_SOLUTION,
        description=f"Follows the problem in the teacher's prompt (prompt: with_solution); {SOLUTION} stands for the problem's own.",
    )

    @property
    def is_there(self) -> bool:
        """Return True if there is a teacher."""
        return self.source != "none"

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        wanted = {"folder": ("folder",), "hub": ("repository", "revision")}.get(self.source, ())
        for key in ("folder", "repository", "revision"):
            if (getattr(self, key) is not None) != (key in wanted):
                remedy = "give it" if key in wanted else "set it to null, or choose the source that reads it"
                raise UserError(
                    f"algorithm.teacher.source is {self.source} and algorithm.teacher.{key} is "
                    f"{'null' if key in wanted else 'given'}: {remedy}"
                )
        require_commit(self.revision, "algorithm.teacher.revision")
        return self

    @model_validator(mode="after")
    def _solution_stands_somewhere(self) -> Self:
        if SOLUTION not in self.solution:
            raise UserError(
                f"algorithm.teacher.solution has no {SOLUTION}, for which the solution stands: write it there"
            )
        return self
