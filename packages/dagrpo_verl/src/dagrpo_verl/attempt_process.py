"""Process that makes and grades the attempts of a run of verl.

`python -m dagrpo_verl.attempt_process JOB`, with lines of JSON.

stdin:  {"attempt": 0, "begin": {"step": 1, "index": 3, "sample": 0}}
        {"turn": 5, "tokens": [7, 8], "logprobs": [-0.5, -1.5], "reason": "stop"}    the policy's answer to a question
stdout: {"attempt": 0, "ask": {"turn": 5, "prompt": [1, 2], "sampling": {"max_new_tokens": 20}}}
        {"attempt": 0, "done": {...}}    its sequences and its reward; or "error" instead of "done"

Each attempt goes to the log of draws, or the error that the user has to correct, or ours, which is to end the run.
"""

import asyncio
import base64
import itertools
import json
import os
import sys
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import before_pictures, collapsed
from dagrpo.core.trajectory import GradedTrajectory, Prompt, TokenSample, Trajectory
from dagrpo.core.types import EXCLUDED, Completion, PictureTokens, PromptPictures
from dagrpo.engine.errors import ServerError
from dagrpo.models.pictures import processor_of
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, only_passages, open_agent
from dagrpo.rollout.prompts import PromptRenderer, tools_of
from dagrpo.rollout.sampling import context_tokens, sampling_seed
from dagrpo.rollout.session import Complete
from dagrpo.tools import InfrastructureFailure
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import AGENT
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.sampling.usable import require_no_dropped_calls
from dagrpo.utils.files import read_json
from dagrpo_verl.draws import DRAWS, DrawLog, Drawn

LONGEST_LINE = 1 << 30  # bytes


class Attempts:
    """Attempts at the prompts of a train split, many at the same time."""

    def __init__(
        self,
        job: Mapping[str, Any],
        tokenizer: PreTrainedTokenizerBase,
        prompts: list[Prompt],
        agent: OpenAgent,
        grader: Grader,
        replies: IO[str],
    ) -> None:
        self._reward = Reward.model_validate(job["reward"])
        self._seed = int(job["seed"])
        self._draws = DrawLog(Path(job["state"]) / DRAWS)
        self._writer = ThreadPoolExecutor(1)  # a shared disk takes milliseconds for a line
        self._prompts = {prompt.index: prompt for prompt in prompts}
        self._tokenizer = tokenizer
        self._agent = agent
        self._grader = grader
        self._replies = replies
        self._numbers = itertools.count()
        self._turns: dict[int, asyncio.Future[Mapping[str, Any]]] = {}

    async def serve(self) -> None:
        """Answer the lines of stdin until it ends."""
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        running: set[asyncio.Task[None]] = set()
        async for line in reader:
            message = json.loads(line)
            if "turn" in message:
                self._turns.pop(message["turn"]).set_result(message)
            else:
                running.add(task := asyncio.create_task(self._attempt(message["attempt"], **message["begin"])))
                task.add_done_callback(running.discard)

    async def _attempt(self, number: int, *, step: int, index: int, sample: int) -> None:
        prompt = self._prompts[index]
        session = self._agent.session(
            prompt,
            self._complete(number, prompt.pictures),
            sampling_seed(self._seed, "rollout", step, index, sample),
            f"{step}-{index}-{sample}",
        )
        try:
            trajectory = of_one_sequence(await self._agent.make_attempt(prompt, sample, session))
            require_no_dropped_calls([trajectory], step)
            graded = (await asyncio.to_thread(grade, [trajectory], self._reward, self._grader))[0]
        except ServerError as error:  # verl's servers: verl decides what it means
            self._send(attempt=number, error=str(error))
        except Exception as error:  # noqa: BLE001  # verl would go on without the attempt
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc()
            await self._write(step, Drawn(index=index, error=reason))
            self._send(attempt=number, error=str(error))
        else:
            fields = ("excluded", "learned", "stop_reason", "fault")
            found = {name: getattr(trajectory, name) for name in fields}
            score: dict[str, Any] = {
                "reward": graded.score.reward,
                "right": graded.score.correct is True,
                "tokens": trajectory.tokens,
            }
            await self._write(step, Drawn(index=index, task=prompt.row.task, **found, **score))
            if trajectory.learned:
                self._send(attempt=number, done=record(graded))
            else:
                reason = trajectory.fault or "it has no token"
                self._send(attempt=number, error=f"left out ({trajectory.stop_reason}): {reason}")

    async def _write(self, step: int, drawn: Drawn) -> None:
        """Append an attempt to the log, one at a time, while others go on."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._draws.add, step, drawn)

    def _complete(self, number: int, pictures: PromptPictures | None) -> Complete:
        """Return the policy of an attempt, which shows the pictures with its first question."""
        shown = [base64.b64encode(file).decode() for file in pictures.files] if pictures else []
        stops = {"stop_token_ids": list(pictures.tokens.unwritten)} if pictures else {}

        async def complete(prompt: tuple[int, ...], most: int) -> Completion:
            if pictures and pictures.files:
                self._require_encoded_alike(prompt, pictures.tokens)
            turn = next(self._numbers)
            answer = self._turns[turn] = asyncio.get_running_loop().create_future()
            question = {"turn": turn, "prompt": prompt, "sampling": {"max_new_tokens": most, **stops}}
            self._send(attempt=number, ask=question | ({"pictures": shown} if shown else {}))
            shown.clear()
            return _completion(await answer, pictures)

        return complete

    def _require_encoded_alike(self, prompt: tuple[int, ...], tokens: PictureTokens) -> None:
        """Raise InfrastructureFailure unless SGLang 0.5.12 reads these tokens: it decodes a prompt with pictures, and encodes its text."""
        sent = collapsed(prompt, tokens)
        if tuple(self._tokenizer.encode(self._tokenizer.decode(sent), add_special_tokens=False)) != sent:
            raise InfrastructureFailure(
                "its tokens are not those of their text, and verl's SGLang reads the text of a prompt with pictures"
            )

    def _send(self, **message: Any) -> None:
        print(json.dumps(message), file=self._replies, flush=True)


def _completion(answer: Mapping[str, Any], pictures: PromptPictures | None) -> Completion:
    """Return the policy's answer as the completion of a turn, cut before a token that no policy may write."""
    if "error" in answer:
        raise ServerError(answer["error"])
    tokens, logprobs, reason = tuple(answer["tokens"]), tuple(answer["logprobs"]), answer["reason"] or "stop"
    whole = len(tokens) if pictures is None else before_pictures(tokens, pictures.tokens)
    return Completion(
        token_ids=tokens[:whole],
        logprobs=logprobs[:whole],
        finish_reason="stop" if whole < len(tokens) else reason,
    )


def of_one_sequence(trajectory: Trajectory) -> Trajectory:
    """Return an attempt, excluded if it is several sequences: verl would fill the batch up, and update again."""
    if (count := sum(sample.trained > 0 for sample in trajectory.samples)) <= 1:
        return trajectory
    fault = (
        f"it became {count} sequences, since the chat template rewrites what was sampled: choose a model whose template keeps it, or "
        "training.backend: {name: fsdp}"
    )
    return replace(trajectory, stop_reason=EXCLUDED, fault=fault)


def record(graded: GradedTrajectory) -> dict[str, Any]:
    """Return an attempt as verl reads it: its sequences, with the reward and its parts."""
    trajectory, score = graded.trajectory, graded.score
    return {
        "samples": [_sequence(sample) for sample in trajectory.samples if sample.trained],
        "reward": score.reward,
        "components": {"acc": float(score.verdict == "right"), **score.components},
        "turns": 1 + len(trajectory.messages),
    }


def _sequence(sample: TokenSample) -> dict[str, list[Any]]:
    first = sample.written[0].start
    return {
        "prompt": list(sample.token_ids[:first]),
        "response": list(sample.token_ids[first:]),
        "mask": [int(each) for each in sample.loss_mask[first:]],
        "logprobs": list(sample.logprobs[first:]),
    }


def main(path: Path) -> None:
    """Make the attempts that stdin asks for."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    job = read_json(path)
    initial, rollout = Path(job["initial"]), Rollout.model_validate(job["rollout"])
    reward, tokenizer = Reward.model_validate(job["reward"]), load_tokenizer(initial)
    renderer = PromptRenderer(tokenizer, rollout, processor_of(initial))
    splits, training = [*map(Path, job["train_splits"].values())], Training.model_validate(job["training"])
    prompts = read_training_prompts(splits, renderer, training, job["shares"])
    env = AgentEnv(
        folder=Path(job["state"]) / AGENT / str(os.getpid()),
        passages=only_passages([*map(Path, job["passages"])]),
        max_new_tokens=rollout.max_new_tokens,
        context_tokens=context_tokens(initial, Runtime.model_validate(job["runtime"]).engine),
        wants_report=bool(reward.reported_keys),
    )
    with (
        Grader(reward.verify_seconds, unit_tests=reward.unit_tests) as grader,
        open_agent(rollout, tokenizer, tools_of(prompts), env) as agent,
    ):
        agent.run(Attempts(job, tokenizer, prompts, agent, grader, replies).serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
