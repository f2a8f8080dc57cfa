"""Teacher logprobs of the policy's tokens, from a separate engine.

It is asked once per step. The loss and its terms define what is learned from the logprobs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.algorithms.teacher_config import SOLUTION, TEACHER
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import picture_lengths
from dagrpo.core.trajectory import Prompt, TokenSample
from dagrpo.core.types import Row, ScoringRequest
from dagrpo.engine import engine_of
from dagrpo.engine.interface import EngineOpener, RolloutEngine
from dagrpo.models.pictures import PictureProcessor, processor_of, takes_pictures
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import context_tokens
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.run import TrainingRun

FAR = 2.0  # nats by which the policy finds a token likelier than the teacher, where the two are called far apart
DIVERGENCE, FAR_FRACTION = "policy/teacher_kl", "policy/teacher_far_fraction"


TeacherPrompt = Callable[[Prompt], tuple[int, ...]]  # returns what the teacher reads in the place of a prompt


def plain_prompt(prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens that the policy reads."""
    return prompt.token_ids


class PromptsWithSolution:
    """Prompts of the policy with the problem's solution behind the last message (arXiv 2601.18734)."""

    def __init__(self, renderer: PromptRenderer, text: str) -> None:
        """Keep `text`, which follows the problem; SOLUTION in it stands for the solution."""
        self._renderer = renderer
        self._text = text
        self._known: dict[int, tuple[int, ...]] = {}

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of the longer prompt. Raises UserError if the problem has no solution."""
        if prompt.index not in self._known:
            longer = _with_solution(prompt.row, self._text)
            self._known[prompt.index] = self._renderer.prompt(prompt.index, longer).token_ids
        return self._known[prompt.index]


def _with_solution(row: Row, text: str) -> Row:
    if not row.answer.strip():
        raise UserError(
            f"{row.task} {row.split} row {row.index} has no solution, which the teacher is to read: set "
            "algorithm.teacher.prompt to plain, or train on a task whose rows have an answer"
        )
    *before, last = row.prompt
    longer = {**last, "content": last["content"] + text.replace(SOLUTION, row.answer)}
    return replace(row, prompt=(*before, longer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Teacher model behind an engine."""

    engine: RolloutEngine
    prompt: TeacherPrompt
    lockstep: bool
    longest: int  # most tokens that it can read

    def score(self, rollouts: Rollouts) -> Rollouts:
        """Return the rollouts with the teacher's logprob of each token that the policy wrote in the kept trajectories.

        Raises UserError if a sequence is too long for the teacher, or does not begin with its problem's prompt.
        """
        samples = [(rollouts.graded[place].trajectory.prompt, sample) for place, sample in rollouts.samples]
        requests = [self._request(prompt, sample) for prompt, sample in samples]
        scores = self.engine.score(requests, lockstep=self.lockstep)
        logprobs = [
            score
            for (_, sample), scores_of_sample in zip(samples, scores, strict=True)
            for score in _of_trained_tokens(sample, scores_of_sample)
        ]
        return replace(rollouts, teacher_logprobs=torch.tensor(logprobs, dtype=torch.float32))

    def _request(self, prompt: Prompt, sample: TokenSample) -> ScoringRequest:
        """Return the request to score a sample after the teacher's prompt, as the policy has continued its own prompt."""
        longer, own = self.prompt(prompt), prompt.token_ids
        first, token_ids = sample.written[0].start, tuple(sample.token_ids)
        if longer != own:
            if token_ids[: len(own)] != own:
                raise UserError(
                    f"{prompt.row.task} row {prompt.index}: the chat template rewrites the prompt after a turn, so that it "
                    "cannot have a solution in it: set algorithm.teacher.prompt to plain"
                )
            token_ids, first = longer + token_ids[len(own) :], first + len(longer) - len(own)
        if len(token_ids) >= self.longest:
            smaller = "lower model.max_pixels so that its pictures take fewer, or " if prompt.row.images else ""
            raise UserError(
                f"{prompt.row.task} row {prompt.index}: with what the policy wrote, the teacher would read "
                f"{len(token_ids)} tokens, and it takes less than {self.longest} (its max_position_embeddings, or "
                "runtime.teacher.max_total_tokens, less what its engine keeps): lower rollout.max_new_tokens or "
                "training.max_prompt_tokens, or "
                f"{smaller}take a teacher that reads more"
            )
        return ScoringRequest(token_ids=token_ids, first=first, pictures=prompt.pictures)


def _of_trained_tokens(sample: TokenSample, scores: Sequence[float]) -> list[float]:
    """Return the scores of the tokens that the policy wrote, of all scores from its first one on: tool results may stand between."""
    mask = sample.loss_mask[sample.written[0].start :]
    return [score for score, is_trained in zip(scores, mask, strict=True) if is_trained]


@contextmanager
def open_teacher(
    run: TrainingRun, tokenizer: PreTrainedTokenizerBase, opener: EngineOpener, prompts: Sequence[Prompt]
) -> Iterator[Teacher | None]:
    """Yield the teacher of a run on these problems, served until the end; None if the run has no teacher."""
    params, engine = run.algorithm.teacher, run.runtime.teacher
    if not params.is_there:
        yield None
        return
    folder = _folder(run)
    require_same_pictures(folder, prompts)
    weights = CastTensors(open_tensors(folder), NAMED_DTYPES[run.rollout.dtype]) if folder == run.initial else None
    opened = opener(
        folder,
        engine.model_copy(update={"weight_sync": "folder"}),  # its weights never change
        run.server_log.with_name(f"{TEACHER}.server.log"),
        dtype=run.rollout.dtype,
        head_dtype=run.rollout.head_dtype,
        deterministic=run.rollout.deterministic,
        weights=weights,
        version=TEACHER,
    )
    with_solution = params.prompt == "with_solution"
    with opened as served:
        yield Teacher(
            engine=served,
            prompt=PromptsWithSolution(
                PromptRenderer(tokenizer, run.rollout, processor_of(run.initial)), params.solution
            )
            if with_solution
            else plain_prompt,
            lockstep=run.rollout.deterministic,
            longest=context_tokens(folder, engine) - engine_of(engine).reserved_tokens,
        )


def require_same_pictures(teacher: Path, prompts: Sequence[Prompt]) -> None:
    """Raise UserError, which names a problem whose pictures the teacher cannot read, or reads as another number of tokens."""
    with_pictures = [(prompt, prompt.pictures) for prompt in prompts if prompt.pictures and prompt.pictures.files]
    if not with_pictures:
        return
    if not takes_pictures(teacher):
        raise UserError(
            f"The teacher in {teacher} takes text alone, and {with_pictures[0][0].row.task} row {with_pictures[0][0].index} "
            "shows pictures, which it is to read, too: choose a vision-language model of the policy's own family (algorithm.teacher)."
        )
    processor = PictureProcessor.of(teacher)
    for prompt, pictures in with_pictures:
        ours = picture_lengths(prompt.token_ids, pictures.tokens)
        theirs = tuple(map(processor.count, pictures.files))
        if ours != theirs:
            raise UserError(
                f"{prompt.row.task} row {prompt.index}: its pictures take {sum(ours)} tokens of the policy's prompt, and "
                f"{sum(theirs)} by the preprocessor_config.json of the teacher in {teacher}: set model.max_pixels, which a teacher of the "
                "hub is given, too, or for another one to the limit that stands there."
            )


def _folder(run: TrainingRun) -> Path:
    """Return the checkpoint's folder; the initial one is in the trainer's format, all others in the Hugging Face layout."""
    if run.algorithm.teacher.source == "initial":
        return run.initial
    assert run.teacher is not None, "the stage teacher has made it"
    return run.teacher


def teacher_metrics(rollouts: Rollouts, trainer_logprobs: torch.Tensor) -> dict[str, float]:
    """Return metrics of the policy's distance from the teacher before the update; {} without one.

    trainer_logprobs: [tokens], of that policy. The metrics are the reverse divergence KL(policy || teacher) in nats per token,
    estimated as the mean log-ratio, and the share of tokens of which it is above FAR.
    """
    if rollouts.teacher_logprobs is None:
        return {}
    log_ratios = trainer_logprobs.double().numpy() - rollouts.teacher_logprobs.double().numpy()
    return {DIVERGENCE: float(log_ratios.mean()), FAR_FRACTION: float(np.mean(log_ratios > FAR))}
