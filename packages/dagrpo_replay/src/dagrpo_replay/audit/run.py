"""Audit of one training: its chain of steps, a few in full."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.algorithms.advantages import ADVANTAGES as ADVANTAGE_KINDS
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.kept import open_kept
from dagrpo.checkpoints.kept import steps as kept_steps
from dagrpo.checkpoints.modules import dtype_of_model
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Prompt
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.rewards.config import Reward
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.rollout.attempts_file import AttemptsFile
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import tools_of
from dagrpo.rollout.table import ALL, TRAINING_ROLLOUTS, read_table
from dagrpo.rollout.tool_runtime.recorded_tool import take_digest
from dagrpo.tools import TOOLS, config_for
from dagrpo.trainer.batches.rollouts import Rollouts, version_of
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.metrics.step import step_metrics
from dagrpo.trainer.run import AGENT, TrainingRun, files_in
from dagrpo.trainer.sampling.prefetch import steps_in_sampler
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler, PromptState
from dagrpo.trainer.setup import open_sampler, read_prompts
from dagrpo.trainer.state.digests import computed_by
from dagrpo.utils.checksummed_json import with_checksum
from dagrpo.utils.distributed import World
from dagrpo.utils.portable import PORTABLE_CPU
from dagrpo.utils.tables import read_parquet
from dagrpo_replay.audit.checks import Check, State, compare, figures
from dagrpo_replay.audit.draws import faults_of_draw, retired_by
from dagrpo_replay.audit.engine import DerivingEngine, deriving_engine, open_teacher_engine, turns_by_seed
from dagrpo_replay.half_steps import rows_with_advantages
from dagrpo_replay.recomputation import Recomputation, StepCheck, explain_difference, not_comparable
from dagrpo_replay.recorded_run import RecordedRun

# Columns of a step's table by what they are derived from.
PROMPTS = (
    *("step", "task", "problem_index", "sample_index", "prompt", "prompt_ids", "question", "ground_truth", "verifier"),
)
TOKENS = (
    *("sampling_seed", "completion_ids", "samples", "completion", "messages", "turns", "finish_reason"),
    *("stop_reason", "completion_tokens", "weight_version", "earlier_versions", "fault"),
)
TOOLS_USED = ("calls",)
REWARDS = ("extracted", "verdict", "correct", "components", "reward", "reported", "greedy_reward", "discarded")
ADVANTAGES = ("advantage", "token_advantages", "logprob_differences", "teacher_logprobs")
ASKING = ("judge", "reward_model")  # components whose values a server gives
KEPT, KEPT_POLICY = "kept", "kept policy of step"
CLOSE = 1e-3  # relative difference of updates that may be rounding: of other kernels it was 2e-6 after 20 steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A recorded run, and what an audit samples it with again."""

    recorded: RecordedRun
    run: TrainingRun  # with a scratch folder for what it writes
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    metrics: Mapping[int, Mapping[str, Any]]  # a row of metrics.parquet by step

    @property
    def where(self) -> str:
        """Return the run's name in the table."""
        return f"train, seed {self.run.seed}"


def audited(recorded: RecordedRun, record: ExecutionRecord, scratch: Path) -> Audited:
    """Return a recorded run with the data and parameters that it names. Raises UserError if its prompts cannot be read."""
    found = [Path(path) for path in record.inputs if path.endswith("passages.parquet")]
    teacher = [Path(path).parent for path in record.inputs if path.endswith("/teacher/manifest.json")]
    run = TrainingRun(
        initial=recorded.initial,
        train_splits=recorded.train_splits,
        shares=recorded.shares,
        passages=tuple(path for path in found if path.parent.name in recorded.train_splits),
        teacher=teacher[0] if teacher else None,
        seed=recorded.seed,
        rollout=recorded.rollout,
        reward=Reward.model_validate(record.params["reward"]),
        algorithm=recorded.algorithm,
        training=recorded.training,
        runtime=Runtime.model_validate(record.runtime),
        **files_in(scratch),
    )
    tokenizer = load_tokenizer(run.initial)
    rows = read_parquet(recorded.folder / "metrics.parquet").to_pylist()
    return Audited(
        recorded=recorded,
        run=run,
        tokenizer=tokenizer,
        prompts=read_prompts(run, tokenizer),
        metrics={row["step"]: row for row in rows},
    )


def check_chain(one: Audited) -> tuple[list[Check], dict[int, PromptState]]:
    """Check that no step is left out, and the problems and seeds of all; return the sampler's state before each step."""
    recorded, training = one.recorded, one.run.training
    numbers = sorted(recorded.digests)
    faults = []
    measured = read_parquet(recorded.folder / "metrics.parquet")["step"].to_pylist()
    if numbers != [*range(1, len(numbers) + 1)] or measured != numbers:
        faults.append(f"the steps of digests.parquet are {_some(numbers)}, of metrics.parquet {_some(measured)}")
    if len(numbers) != training.steps and (training.patience is None or len(numbers) > training.steps):
        faults.append(f"there are {len(numbers)} steps, and training.steps is {training.steps}")
    files = {path.name for path in recorded.rollouts.glob("step_*.parquet")}
    if files != {one.recorded.table(number).name for number in range(1, len(numbers) + 1)}:
        faults.append(f"there are {len(files)} tables of rollouts for {len(numbers)} steps")
    steps = Check.of(one.where, "chain of steps", faults, f"{len(numbers)} of {len(numbers)} steps")
    if faults:
        return [steps, Check.unchecked(one.where, "problems and seeds", "steps are missing")], {}
    if training.dynamic_sampling.max_aborts:
        reason = "training.dynamic_sampling.max_aborts: which groups were cut off depends on the time that they took"
        return [steps, Check.unchecked(one.where, "problems and seeds", reason)], {}
    sampler = PromptSampler(one.prompts, training, one.run.seed, shares=one.run.shares)
    prompts = {prompt.index: prompt for prompt in one.prompts}
    states, count = dict[int, PromptState](), 0
    for step in numbers:
        states[step] = sampler.saved
        table = AttemptsFile(one.recorded.table(step)).short
        faults += faults_of_draw(one.run, step, table, sampler)
        for index in retired_by(table, training):
            if index in prompts:  # a draw that is not due was found already
                sampler.retire_prompt(prompts[index])
        count += table.num_rows
    return [
        steps,
        Check.of(one.where, "problems and seeds", faults, f"{count:,} attempts of {len(numbers)} steps"),
    ], states


def _some(numbers: Sequence[int]) -> str:
    return ", ".join([*map(str, numbers[:3]), *(["..."] if len(numbers) > 3 else [])]) + f" ({len(numbers)})"


def whole_steps(recorded: RecordedRun) -> list[int]:
    """Return the steps whose tables have all tokens (runtime.keep_rollouts)."""
    return [
        step
        for step in recorded.digests
        if recorded.table(step).is_file() and set(AttemptsFile(recorded.table(step)).short["kept"].to_pylist()) == {ALL}
    ]


def check_steps(one: Audited, steps: Sequence[int], states: Mapping[int, PromptState], world: World) -> Iterator[Check]:
    """Derive some steps again: tokens, results of tools, rewards, advantages, gradients and weights. Yield the checks.

    The weights come from the initial checkpoint, or the nearest state of `recorded`, by the updates of all steps on the way.
    """
    if reason := _reason_against_steps(one):
        yield Check.unchecked(one.where, "steps", reason)
        return
    recomputation = Recomputation(one.recorded, world)
    derived = dict[int, _Sampled]()
    on_the_way, kept = list[StepCheck](), kept_steps(one.recorded.folder / KEPT)
    lag = one.run.training.staleness
    for step in sorted({0, *(step for n in steps for step in (steps_in_sampler(n - 1, lag), n - 1, n))}):
        for found in recomputation.up_to(step) if step else ():
            on_the_way.append(found)
            if found.step in kept:
                yield _check_policy(one, recomputation, world, found.step)
        if step in steps:
            yield from _check_update(one, derived.pop(step), on_the_way[-1])
        for number in (n for n in steps if steps_in_sampler(n - 1, lag) == step):
            derived[number] = _sample(one, number, step, states.get(number), recomputation, world)
        if step + 1 in steps:
            yield from _check_rows(one, derived[step + 1], recomputation)
    yield _check_weights(one, on_the_way, world)
    if max(steps) == recomputation.finished == one.recorded.steps:
        yield _check_policy(one, recomputation, world)
    else:
        reason = f"weights were derived up to step {recomputation.finished}: name step {one.recorded.steps} (--steps)"
        yield Check.unchecked(one.where, "trained policy", reason)


def _reason_against_steps(one: Audited) -> str:
    run = one.run
    if (agent := run.rollout.agent.name) != OWN_LOOP:
        return f"the agent {agent} is a program, whose requests are not recorded"
    are_repeatable = all(TOOLS.get(n).repeatable(config_for(n, run.rollout.tools)) for n in tools_of(one.prompts))
    if not are_repeatable and run.training.dynamic_sampling.max_rounds > 1:
        return "the results of tools in later rounds of training.dynamic_sampling are not recorded"
    if not are_repeatable and ADVANTAGE_KINDS.get(run.algorithm.advantage.name).needs_greedy:
        return "the results of tools in greedy attempts are not recorded"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """A step that was sampled again."""

    step: int
    recorded: pa.Table
    engine: DerivingEngine
    reason: str  # why its tokens cannot be derived; ""
    rollouts: Rollouts
    inputs: int  # results of tools that are taken as they are


def _sample(
    one: Audited,
    step: int,
    finished: int,
    state: PromptState | None,
    recomputation: Recomputation,
    world: World,
) -> _Sampled:
    """Sample a step again, from the weights after `finished` steps."""
    recorded = read_table(one.recorded.table(step), TRAINING_ROLLOUTS)
    rows, rollout = recorded.to_pylist(), one.run.rollout
    weights = GatheredWeights(recomputation.policy.model, NAMED_DTYPES[rollout.dtype], world)
    with weights.reading() as tensors:
        engine = deriving_engine(
            one.run.initial,
            tensors,
            turns_by_seed(rows),
            dtype=rollout.dtype,
            head_dtype=rollout.head_dtype,
            version=version_of(finished),
            device=world.device,
        )
    is_seeded = rollout.deterministic or one.recorded.digests[step].computed.device in ("cpu", PORTABLE_CPU)
    reason = reason_against_tokens(rollout, one.run.runtime.engine.name, one.prompts, is_seeded=is_seeded)
    engine.explains = not reason
    run = replace(
        one.run,
        rollout=rollout.model_copy(update={"deterministic": True}),
        reward=_without_servers(one.run.reward),
    )
    sampler = PromptSampler(one.prompts, run.training, run.seed, shares=run.shares, finished=step - 1, saved=state)
    inputs = write_results(rows, run.training.samples_per_prompt, one.prompts, rollout, run.state / AGENT)
    others = (engine.as_engine, open_teacher_engine, sampler)
    with open_sampler(run, one.tokenizer, one.prompts, *others, first=step - 1, replays=True) as opened:
        rollouts = opened.sample(step - 1, Clock())
    return _Sampled(step=step, recorded=recorded, engine=engine, reason=reason, rollouts=rollouts, inputs=inputs)


def reason_against_tokens(
    conversation: Conversation, engine: str, prompts: Sequence[Prompt], *, is_seeded: bool
) -> str:
    """Return why tokens do not follow from weights and seeds; "" if they do. is_seeded: the engine has drawn by the seeds."""
    if engine != "sglang":
        return f"the engine {engine} draws by a rule that is not known here"
    if not is_seeded:
        return "rollout.deterministic is false, without which a server on a GPU ignores the seeds"
    if conversation.agent.name != OWN_LOOP:
        return f"the agent {conversation.agent.name} is a program, whose requests are not recorded"
    return "prompts have pictures" if any(prompt.picture_files for prompt in prompts) else ""


def _without_servers(reward: Reward) -> Reward:
    left = {name: config for name, config in reward.components.items() if name not in ASKING}
    return reward.model_copy(update={"components": left}) if len(left) < len(reward.components) else reward


def write_results(
    rows: Sequence[Mapping[str, Any]], size: int, prompts: Sequence[Prompt], conversation: Conversation, folder: Path
) -> int:
    """Write the results of tools that are not repeatable where the tools look for them, and return their number."""
    number = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in tools_of(prompts):
        kind, config = TOOLS.get(name), config_for(name, conversation.tools)
        if kind.repeatable(config):
            continue
        functions = {function.name for function in kind.functions(config)}
        records = list[str]()
        for place, row in enumerate(rows):
            attempt = f"{place // size}-{row['sample_index']}-{row['sampling_seed']}"
            digests = set[str]()
            for call in row["calls"]:
                key = {"ok": "result", "failed": "failure", "timed_out": "late"}.get(call["status"])
                if key is not None and call["name"] in functions:
                    with suppress(ValueError):  # forged: the policy has written JSON
                        digest = take_digest(digests, call["name"], json.loads(call["arguments"]), attempt)
                        records.append(json.dumps(with_checksum({"call": digest, key: call["result"]})))
        (folder / f"{TOOLS.label(name)}.results.jsonl").write_text("".join(f"{each}\n" for each in records))
        number += len(records)
    return number


def _check_rows(one: Audited, sampled: _Sampled, recomputation: Recomputation) -> Iterator[Check]:
    where, table = f"{one.where}, step {sampled.step}", sampled.recorded
    yield check_tokens(where, sampled.engine, sampled.reason)
    budget = one.recorded.digests[sampled.step].computed.budget
    derived = rows_with_advantages(sampled.rollouts, recomputation.policy.policy_update(budget))
    yield compare(where, "prompts", table, derived, PROMPTS)
    yield compare(where, "conversations", table, derived, TOKENS)
    if pc.any(pc.greater(pc.list_value_length(table["calls"]), 0)).as_py():
        calls = compare(where, "results of tools", table, derived, TOOLS_USED)
        note = f"{sampled.inputs} are input: their tools give other results each time" if sampled.inputs else ""
        yield replace(calls, note=note or calls.note)
    servers = [name for name in ASKING if name in one.run.reward.components]
    if servers:
        yield Check.unchecked(where, "rewards, advantages", f"a server gives the component {servers[0]}")
        return
    yield compare(where, "rewards", table, derived, REWARDS)
    yield compare(where, "advantages", table, derived, ADVANTAGES)


def check_tokens(where: str, engine: DerivingEngine, reason: str) -> Check:
    """Return the check of the tokens that an engine has explained."""
    if reason:
        return Check.unchecked(where, "tokens", reason)
    seen = engine.explained
    notes = [f"logprobs within {seen.unlike:.1e} nats"]
    if seen.near:
        notes.append(f"{seen.near:,} within {seen.gap:.1e} nats of the largest sum")
    if seen.ties:
        notes.append(f"{seen.ties:,} undecided: rounding decides the order of their probabilities")
    return Check.of(
        where,
        "tokens",
        seen.faults,
        f"{seen.exact:,} of {seen.tokens:,} drawn again",
        state=State.WITHIN if seen.near or seen.ties else State.EQUAL,
        note="; ".join(notes),
    )


def _check_update(one: Audited, sampled: _Sampled, found: StepCheck) -> Iterator[Check]:
    where = f"{one.where}, step {sampled.step}"
    if _without_servers(one.run.reward) is not one.run.reward:
        return
    advantages = found.stats.advantages
    if advantages is None or sum(sampled.rollouts.lengths) != len(advantages):
        yield Check.of(where, "metrics", ["the derived attempts have another number of tokens than the recorded ones"])
        return
    rollouts = replace(sampled.rollouts, advantages=advantages)
    yield figures(where, "metrics", one.metrics[sampled.step], step_metrics(rollouts, found.stats))


def _check_weights(one: Audited, found: Sequence[StepCheck], world: World) -> Check:
    """Return the check of all updates that were computed again."""
    compared = [check for check in found if check.is_compared]
    if not compared:
        return Check.unchecked(one.where, "gradients and weights", "no digests of these steps (training.digests_every)")
    start = f"the state of step {found[0].after}, which is input" if found[0].after else "the initial checkpoint"
    checked, what = f"{len(compared)} of {one.recorded.steps} updates, from {start}", "gradients and weights"
    fault = explain_difference(found)
    norms = [abs(each.stats.grad_norm - each.recorded_grad_norm) / (each.recorded_grad_norm or 1) for each in compared]
    unlike = max(norms, key=lambda norm: (math.isnan(norm), norm))
    return _judged(one, what, [fault] if fault else [], checked, f"gradient norms within {unlike:.1e}", unlike, world)


def _check_policy(one: Audited, recomputation: Recomputation, world: World, kept: int | None = None) -> Check:
    """Compare the tensors of the trained policy, or of the one that was kept after a step, with the derived ones."""
    what, folder, start = "trained policy", one.recorded.folder, open_tensors(one.run.initial)
    if kept is None:
        published, dtype = open_tensors(folder / "policy"), dtype_of_model(recomputation.policy.model)
    else:
        what, dtype = f"{KEPT_POLICY} {kept}", NAMED_DTYPES[one.run.rollout.dtype]
        published = open_kept(folder / KEPT, one.run.initial, kept)
    unlike = moved = 0.0  # squares of the distances between both policies, and from the initial checkpoint
    with GatheredWeights(recomputation.policy.model, torch.float32, world).reading() as gathered:
        tensors = CastTensors(gathered, dtype)
        names, faults = sorted(tensors.specs), list[str]()
        if tensors.specs != published.specs:
            faults, unlike = ["its tensors have other names, types or shapes than the derived ones"], math.inf
        for name in itertools.islice(names, 0 if faults else None):
            mine, theirs = published.read(name), tensors.read(name).to("cpu")
            moved += float((theirs.double() - start.read(name).double()).square().sum()) if name in start.specs else 0.0
            if not torch.equal(mine, theirs):
                difference = mine.double() - theirs.double()
                unlike += float(difference.square().sum())
                faults.append(
                    f"{name} of the policy differs from the derived one by up to {difference.abs().max():.1e}"
                )
    share = math.sqrt(unlike / moved) if moved else math.inf
    measured = f"differs by {share:.1e} of the distance from the initial checkpoint"
    return _judged(one, what, faults, f"{len(names)} tensors", measured, share, world)


def _judged(
    one: Audited, what: str, faults: Sequence[str], checked: str, measured: str, unlike: float, world: World
) -> Check:
    """Return a check of updates, whose differences may be rounding if the run names other conditions. unlike: relative"""
    computed = one.recorded.digests[one.recorded.steps].computed
    others = not_comparable(one.recorded, computed, computed_by(world, computed.budget, computed.hashed_by))
    if faults and others and unlike < CLOSE:
        note = f"{measured}, not to the bit. {others[0]} Nothing but the run says what it was computed with."
        return Check.of(one.where, what, (), checked, state=State.WITHIN, note=note)
    return Check.of(one.where, what, faults, checked)
