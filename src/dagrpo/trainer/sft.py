"""Supervised fine-tuning (SFT), the stage before GRPO.

It learns the train split's answers and demonstrations with the policy, sharding, optimizer and resumable state of the GRPO
trainer; one mini-batch per step, no engine. With no steps the model passes through unchanged, so that the DAG has one shape for
every experiment.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch

from dagrpo.chat.renderers import chat_format
from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.store import link
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.models.pictures import processor_of
from dagrpo.rollout.mixture import Mixture, spread_evenly
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, MicroBatchSplitter, head_chunk_of, reduction_of
from dagrpo.trainer.batches.supervised import SupervisedSequence, supervised_sequences
from dagrpo.trainer.config.runtime import Layout, SftRuntime
from dagrpo.trainer.model.fsdp import load_policy, reduce_next
from dagrpo.trainer.model.memory import advice_on_memory, require_room
from dagrpo.trainer.model.optimizer import adamw, apply_gradients, decayed, warmed_up
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.prepare import prepare_compilation, prepare_layout
from dagrpo.trainer.run import Report, SftRun, no_report
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.console import progress
from dagrpo.utils.determinism import compute_deterministically, explained
from dagrpo.utils.distributed import World, expand_segments

KEPT_STATES = 1  # of a finished run: more sft.steps resume from it


def fine_tune(run: SftRun, report: Report, world: World) -> None:
    """Fine-tune a checkpoint, from the newest state if there is one, and write the result. Every rank calls this.

    `report(step, metrics)` is called on rank 0 for every step of the run: first for those that an earlier execution
    finished. Raises UserError if the data, the checkpoint or a saved state cannot be used.
    """
    if run.sft.steps == 0:
        if world.is_rank_zero:
            link(run.model, run.tuned)
        return
    assert run.sft.batch_size % world.size == 0, "the schema refuses it"
    if world.device.type == "cuda":  # a CPU adds up in one order anyway
        compute_deterministically(run.deterministic)
    expand_segments()
    with explained(), states.exclusive(run.state) if world.is_rank_zero else nullcontext():
        FineTuning(run, report, world).train()


class FineTuning:
    """One rank of a supervised run."""

    def __init__(self, run: SftRun, report: Report, world: World) -> None:
        """Read the data, then load the policy, so that a bad row fails at once."""
        self._run = run
        self._report = report
        self._world = world
        tokenizer = load_tokenizer(run.model)
        self._pad_token_id = tokenizer.eos_token_id
        chat = chat_format(tokenizer, run.conversation.chat)
        pictures = processor_of(run.model)
        self._rows = {
            task: supervised_sequences(split, tokenizer, chat, run.conversation.tools, pictures)
            for task, split in run.train_splits.items()
        }
        sizes = {task: len(rows) for task, rows in self._rows.items()}
        self._mixture = Mixture(sizes, run.shares, run.sft.batch_size)
        require_room(run.model, "sft", run.sft, world)
        self._policy = load_policy(
            run.model,
            world,
            run.sft.vision,
            run.sft.lora,
            run.seed,
            dtype=NAMED_DTYPES[run.sft.dtype],
            activation_checkpointing=run.runtime.activation_checkpointing,
        )
        self._layout = prepare_layout(self._policy, run.runtime.layout, world, section="runtime.sft")
        prepare_compilation(self._policy, run.runtime.compile, world, self._layout, section="runtime.sft")
        self._optimizer = adamw(
            self._policy.parameters(), run.sft.weight_decay, moments=NAMED_DTYPES[run.sft.moments_dtype]
        )
        self._base = tensor_digest_of(run.model)

    def train(self) -> None:
        """Run every unfinished step, then write the output."""
        run, model, steps = self._run, self._policy.model, self._run.sft.steps
        finished = tensors.resume(run.state, steps, model, self._optimizer, self._world, base=self._base)
        # Metrics of every finished step: a state carries them, so that a resumed run can report them again.
        metrics: list[dict[str, float]] = states.at(run.state, finished).notes if finished else []
        shutdown = Shutdown(run.grace_seconds, self._world)
        with self._reporting() as report, shutdown.listening():
            for step in range(1, finished + 1):
                report(step, metrics[step - 1])
            for step in range(finished, steps):
                metrics.append(self._run_step(step))
                report(step + 1, metrics[-1])
                is_last = shutdown.requested()
                if is_last or (step + 1) % run.runtime.save_every == 0 or step + 1 == steps:
                    tensors.save(run.state, step + 1, model, self._optimizer, self._world, metrics, base=self._base)
                if is_last:
                    break
        save_sharded(model, run.model, run.tuned, self._world)
        if self._world.is_rank_zero:
            states.prune(run.state, steps, KEPT_STATES)

    def _run_step(self, step: int) -> dict[str, float]:
        """Update once on the mean negative logprob of the target tokens of the step's rows."""
        sft = self._run.sft
        with advice_on_memory("runtime.sft.micro_batch_size", self._run.runtime.micro_batch_size):
            loss = accumulate(
                self._policy,
                _sequences(self._rows_of(step)),
                self._run.runtime,
                layout=self._layout,
                pad_token_id=self._pad_token_id,
                world=self._world,
            )
            learning_rate = warmed_up(sft.learning_rate, step, sft.learning_rate_warmup_steps)
            learning_rate *= decayed(sft.learning_rate_final, step, sft.learning_rate_decay_steps)
            norm = apply_gradients(self._optimizer, learning_rate, sft.max_grad_norm)
        self._policy.forget_pictures()
        return {"sft/loss": loss, "sft/grad_norm": norm, "sft/learning_rate": learning_rate}

    def _rows_of(self, step: int) -> list[SupervisedSequence]:
        """Return the rows of a step (0-based): the next ones of each task's shuffled epochs, in its share."""
        first, counts = self._mixture.before(step), self._mixture.counts(step)
        is_mixture = len(self._rows) > 1
        rows = {
            task: iter(prompt_indices(self._run.seed, first[task], counts[task], len(own), task=task * is_mixture))
            for task, own in self._rows.items()
        }
        return [self._rows[task][next(rows[task])] for task in spread_evenly(counts)]

    @contextmanager
    def _reporting(self) -> Iterator[Report]:
        """Yield the report of finished steps: on rank 0 to the caller and the progress bar, elsewhere it does nothing."""
        if not self._world.is_rank_zero:
            yield no_report
            return
        with progress(f"sft (seed {self._run.seed})", self._run.sft.steps) as bar:

            def tell(step: int, metrics: Mapping[str, float]) -> None:
                self._report(step, metrics)
                bar.advance(1, f"loss {metrics['sft/loss']:.3f}")

            yield tell


def accumulate(
    policy: Policy, sequences: TokenSequences, runtime: SftRuntime, *, layout: Layout, pad_token_id: int, world: World
) -> float:
    """Add the gradient of this rank's part of a batch; return the loss over all ranks."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    each = [slice(row, row + 1) for row in range(len(sequences))]
    splitter = MicroBatchSplitter(sequences, Budget(sequences=runtime.micro_batch_size))
    parts = splitter.micro_batches(each, world.rank, world.size)
    on_gpu = world.device.type == "cuda"
    reduction = reduction_of(runtime, on_gpu=on_gpu)
    chunk = head_chunk_of(runtime, on_gpu=on_gpu, linear_head=policy.has_linear_head)
    for number, part in enumerate(parts, start=1):
        reduce_next(policy, reduction, is_last=number == len(parts))
        micro_batch = sequences.lay_out(part, pad_token_id, world.device, layout)
        logprobs = token_logprobs(policy, micro_batch, 1.0, head_chunk_tokens=chunk).logprobs
        loss = -logprobs.sum() / sum(sequences.trained)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return float(world.all_reduce(total.cpu()))


def _sequences(rows: Sequence[SupervisedSequence]) -> TokenSequences:
    """Return the rows of a batch as token sequences."""
    return TokenSequences.of(
        [row.token_ids for row in rows], [row.loss_mask for row in rows], [row.pictures for row in rows]
    )
