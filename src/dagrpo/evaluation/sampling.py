"""Stage `sample`: complete every test prompt greedily once and k times sampled.

Stage `score` grades what this stage writes, and can be repeated without a model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import without_pictures
from dagrpo.checkpoints.folder import require_chat_template, require_format, require_tokenizer
from dagrpo.checkpoints.manifest import Manifest, verify
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.section import HeadDtype
from dagrpo.core.trajectory import BLIND, Prompt, Trajectory
from dagrpo.core.types import Row
from dagrpo.engine import open_engine
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.interface import RolloutEngine
from dagrpo.evaluation import config
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.build_table import rollout_table
from dagrpo.rollout.collect import FailedPrograms, collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.open_agent import AgentEnv, open_agent
from dagrpo.rollout.prompts import PromptLimit, PromptRenderer, prompts_of, read_split, tools_of
from dagrpo.rollout.sampling import Sampling, context_tokens, sampling_seed
from dagrpo.rollout.schedule import OnBatch
from dagrpo.utils.console import progress

BATCHES_IN_FLIGHT = 4  # when nothing is in lockstep, more attempts than run at once keep the engine full
VERSION_DIGITS = 12  # of the digest of a checkpoint's tensors, by which the rollouts name its weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAttempts:
    """Parameters of a checkpoint's attempts at the problems of a split."""

    model: Path  # folder of the Hugging Face checkpoint
    split: Path  # train.parquet or test.parquet
    passages: Path | None = None  # passages.parquet of its task, for tools that search
    max_problems: int | None = None  # only the first ones of the split; None: all
    without_pictures: bool = False  # whether problems with pictures are attempted once more, greedily, without them
    conversation: Conversation
    sampling: Sampling  # its batch_size follows from the engine
    seeds: tuple[int, int]  # of the section that sampling comes from, and of the run
    engine: EngineConfig
    dtype: str  # of the engine
    head_dtype: HeadDtype = None
    server_log: Path
    agent_folder: Path  # for what the agent and its tools write
    replays: bool = (
        False  # whether tools that are not repeatable give the results that are recorded there, and no other ones
    )


def evaluation_sampling(section: config.Sampling, *, deterministic: bool) -> Sampling:
    """Return section `evaluation.sampling` as sampling parameters, with a greedy attempt at each problem."""
    return Sampling(
        section="evaluation.sampling",
        samples=section.samples,
        greedy=True,
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_new_tokens=section.max_new_tokens,
        lockstep=deterministic,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint, for several splits one after the other."""

    tokenizer: PreTrainedTokenizerBase
    engine: Callable[[], RolloutEngine]  # opened by the first call: rows that cannot be used are found before


@contextmanager
def opened(attempts: SplitAttempts, *, keep_pictures: bool = True) -> Iterator[Checkpoint]:
    """Open the checkpoint of some attempts, and of others at other splits. Raises UserError if it does not match its manifest.

    `keep_pictures`: whether the vision tower stays the same, so that its outputs may be cached.
    """
    manifest = require_samplable(attempts.model)
    with ExitStack() as stack:

        @cache
        def engine() -> RolloutEngine:
            return stack.enter_context(
                open_engine(
                    attempts.model,
                    attempts.engine,
                    attempts.server_log,
                    dtype=attempts.dtype,
                    head_dtype=attempts.head_dtype,
                    deterministic=attempts.sampling.lockstep,
                    version=manifest.tensors.digest[:VERSION_DIGITS],
                    keep_pictures=keep_pictures,
                )
            )

        yield Checkpoint(tokenizer=load_tokenizer(attempts.model), engine=engine)


def sample(attempts: SplitAttempts, checkpoint: Checkpoint) -> pa.Table:
    """Return the rollouts of a split, columns as in ROLLOUTS; problems in order, the greedy attempt at each first.

    Attempts without pictures come after all others.
    """
    return rollout_table(attempt_split(attempts, checkpoint))


def attempt_split(attempts: SplitAttempts, checkpoint: Checkpoint) -> list[Trajectory]:
    """Return the attempts at each problem of the split, in order.

    Raises UserError if a row cannot be used; ServerError if the server fails.
    """
    tokenizer = checkpoint.tokenizer
    prompts = read_prompts(attempts, tokenizer)
    trajectories = attempt(prompts, attempts, checkpoint.engine(), tokenizer)
    return trajectories + attempt_blindly(prompts, attempts, checkpoint.engine(), tokenizer)


def attempt_blindly(
    prompts: Sequence[Prompt], attempts: SplitAttempts, engine: RolloutEngine, tokenizer: PreTrainedTokenizerBase
) -> list[Trajectory]:
    """Return a greedy attempt at each problem with pictures, without its pictures; [] without pictures, or if it is off."""
    pictured = [prompt for prompt in prompts if prompt.row.images] if attempts.without_pictures else []
    if not pictured:
        return []
    renderer = PromptRenderer(tokenizer, attempts.conversation, processor_of(attempts.model))
    blind = [renderer.prompt(prompt.index, without_pictures(prompt.row)) for prompt in pictured]
    greedy = replace(attempts, sampling=replace(attempts.sampling, samples=0))
    trajectories = attempt(blind, greedy, engine, tokenizer, what="sample without pictures")
    return [replace(trajectory, sample_index=BLIND) for trajectory in trajectories]


def require_samplable(model: Path) -> Manifest:
    """Check a checkpoint against its manifest. Raises UserError if it cannot be sampled from."""
    manifest = verify(model)
    require_format(model, manifest, "huggingface")
    require_tokenizer(model)
    require_chat_template(model)
    return manifest


def read_prompts(attempts: SplitAttempts, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Return the rendered split. Raises UserError for a row that leaves no room for its completion."""
    return rendered(enumerate(read_split(attempts.split)[: attempts.max_problems]), attempts, tokenizer)


def rendered(
    rows: Iterable[tuple[int, Row]], attempts: SplitAttempts, tokenizer: PreTrainedTokenizerBase
) -> list[Prompt]:
    """Return rendered rows of the split, each with its index. Raises UserError like `read_prompts`."""
    room = context_tokens(attempts.model, attempts.engine)
    longest = attempts.sampling.max_new_tokens
    limit = PromptLimit(
        tokens=room - longest,
        reason=f"{attempts.sampling.section}.max_new_tokens is {longest}, but model and engine hold {room}: "
        "lower it, or leave the row out",
    )
    renderer = PromptRenderer(tokenizer, attempts.conversation, processor_of(attempts.model))
    return prompts_of(rows, renderer, limit, attempts.split)


def attempt(
    prompts: Sequence[Prompt],
    attempts: SplitAttempts,
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    *,
    what: str = "sample",
) -> list[Trajectory]:
    """Sample the attempts with an open engine, under a progress bar."""
    tokens = 0
    what = f"{what} {prompts[0].row.task} (seed {attempts.seeds[1]})"
    with progress(what, len(prompts) * len(attempts.sampling.sample_indices)) as bar:

        def show(finished: Sequence[Trajectory]) -> None:
            nonlocal tokens
            tokens += sum(trajectory.tokens for trajectory in finished)
            bar.advance(len(finished), note=f"{tokens:,} tokens")

        return attempt_unseen(prompts, attempts, engine, tokenizer, what=what, on_batch=show)


def attempt_unseen(
    prompts: Sequence[Prompt],
    attempts: SplitAttempts,
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    *,
    what: str,
    on_batch: OnBatch = lambda trajectories: None,
) -> list[Trajectory]:
    """Sample like `attempt`, without a progress bar. Seeds do not depend on the checkpoint. `what` names the attempts in warnings."""
    batches = 1 if attempts.sampling.lockstep else BATCHES_IN_FLIGHT
    sampling = replace(attempts.sampling, batch_size=batches * attempts.engine.max_running_requests)

    def seed_of(position: int, sample_index: int) -> int:
        prompt = prompts[position]
        return sampling_seed(*attempts.seeds, prompt.row.task, prompt.index, sample_index)

    with open_agent(attempts.conversation, tokenizer, tools_of(prompts), _agent_env(attempts)) as agent:
        trajectories = collect(prompts, sampling, seed_of, engine=engine, agent=agent, on_batch=on_batch)
    FailedPrograms(attempts.agent_folder).warn(what, trajectories)
    return trajectories


def _agent_env(attempts: SplitAttempts) -> AgentEnv:
    return AgentEnv(
        folder=attempts.agent_folder,
        replays=attempts.replays,
        passages=attempts.passages,
        max_new_tokens=attempts.sampling.max_new_tokens,
        context_tokens=context_tokens(attempts.model, attempts.engine),
    )
