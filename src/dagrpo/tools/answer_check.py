"""answer_check: checks an answer by the row's own verifier. An oracle.

It knows the ground truth. verl offers the same under the names calc_gsm8k_reward and calc_geo3k_reward.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field

from dagrpo.core.section import Seconds
from dagrpo.rewards.grading import Grader, worker_count
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.tools import (
    CallContext,
    OpenTool,
    StatelessTool,
    Tool,
    ToolFailure,
    ToolPlace,
    ToolSection,
    function_of_text,
)

MOST_WORKERS = 8
# As the policy wrote the answer, and then in the forms that verifiers ask for.
FORMS = ("{}", "#### {}", "Answer: {}", "\\boxed{{{}}}", "<answer>{}</answer>")
DESCRIPTION = "Check whether a final answer to the problem is right or wrong."
FUNCTION = function_of_text("answer_check", DESCRIPTION, "answer", "The final answer alone.")


class Config(ToolSection):
    """Check of an answer against the ground truth."""

    verify_seconds: Seconds = Field(2.0, description="Time limit of math-verify for one answer.")


class AnswerCheck(StatelessTool):
    """Checker of answers in a thread, as comparing may take seconds."""

    def __init__(self, grader: Grader) -> None:
        self._grader = grader

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return `right` or `wrong`. Raises ToolFailure if the answer cannot be parsed, or takes too long to compare."""
        row, extract = context.row, get_verifier(context.row.verifier).extract
        texts = (form.format(arguments["answer"]) for form in FORMS)
        text = next((text for text in texts if extract(text, "strict") is not None), None)
        if text is None:
            raise ToolFailure("No answer can be read: give the final answer alone.")
        comparison = [text], [row.ground_truth], [row.verifier]
        (judged,) = await asyncio.to_thread(self._grader.judge, *comparison, "strict")
        if judged.verdict == "unverifiable":
            raise ToolFailure("Comparing this answer takes too long: give it in a simpler form.")
        return judged.verdict


@asynccontextmanager
async def _open(config: Config, place: ToolPlace) -> AsyncIterator[OpenTool]:
    with Grader(config.verify_seconds, min(MOST_WORKERS, worker_count())) as grader:  # beside the rewards' own
        yield AnswerCheck(grader)


TOOL = Tool(config=Config, functions=lambda config: [FUNCTION], open=_open, oracle=True)
