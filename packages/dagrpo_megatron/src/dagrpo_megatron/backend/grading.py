"""Process that grades the responses of a run of Megatron-LM.

`python -m dagrpo_megatron.backend.grading JOB`: a line of JSON for each on stdin, `{"index": 3, "prompt": [1, 2], "response": [7, 8]}`,
and on stdout its reward with its components, or an error. What the user has to correct also goes to the file `mistake` of the job.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.chat.renderers import chat_format
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import Completion
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade
from dagrpo.rollout.agent_loop import NoUser, attempt
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.session import Session, SessionLimits
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.utils.files import read_json

UNLIMITED = 1 << 40  # tokens: the trainer has cut the response before


class Responses:
    """Graded responses to the prompts of a train split."""

    def __init__(self, job: Mapping[str, Any], grader: Grader) -> None:
        self._reward = Reward.model_validate(job["reward"])
        self._rollout = Rollout.model_validate(job["rollout"])
        tokenizer = load_tokenizer(Path(job["model"]))
        renderer = PromptRenderer(tokenizer, self._rollout)
        prompts = read_training_prompts([Path(job["train_split"])], renderer, Training.model_validate(job["training"]))
        self._prompts = {prompt.row.index: prompt for prompt in prompts}
        self._chat = chat_format(tokenizer, self._rollout.chat)
        self._grader = grader

    def answer(self, question: Mapping[str, Any]) -> dict[str, float]:
        """Return reward, accuracy and components. Raises UserError if the trainer has rendered the prompt as other tokens than we do."""
        prompt = self._prompts[question["index"]]
        if tuple(question["prompt"]) != prompt.token_ids:
            raise UserError(
                f"the trainer's tokens of the prompt of row {prompt.row.index} are not ours: {question['prompt'][:40]} instead of "
                f"{list(prompt.token_ids)[:40]}; a row that spells special tokens, or a chat template with options, can be the reason"
            )
        score = grade([self._trajectory(prompt, question["response"])], self._reward, self._grader)[0].score
        return {"reward": score.reward, "acc": float(score.verdict == "right"), **score.components}

    def _trajectory(self, prompt: Prompt, response: Sequence[int]) -> Trajectory:
        limits, most = self._rollout.agent, self._rollout.max_new_tokens
        completion = Completion(
            token_ids=tuple(response),
            logprobs=(0.0,) * len(response),
            finish_reason="length" if len(response) >= most else "stop",
        )

        async def sampled(tokens: tuple[int, ...], most: int) -> Completion:
            return completion

        session = Session(
            prompt=prompt,
            chat=self._chat,
            complete=sampled,
            limits=SessionLimits(turns=1, tokens=UNLIMITED, new_tokens=most),
            seed=0,
            name="response",
        )
        return asyncio.run(
            attempt(session, 0, user=NoUser(), toolbox=Toolbox({}, limits), tools=prompt.tools, limits=limits)
        )


def main(path: Path) -> None:
    """Answer each line of stdin until it ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    job = read_json(path)
    reward = Reward.model_validate(job["reward"])
    with Grader(reward.verify_seconds, unit_tests=reward.unit_tests) as grader:
        responses = Responses(job, grader)
        for question in map(json.loads, sys.stdin):
            try:
                reply: dict[str, Any] = responses.answer(question)
            except UserError as error:
                reply = {"error": str(error)}
                Path(job["mistake"]).write_text(str(error))
            print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
