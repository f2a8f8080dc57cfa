"""Tables of rollouts: one Arrow schema, to which training adds columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import BLIND, GradedTrajectory, TokenSample, Trajectory
from dagrpo.core.types import BROKEN, ToolCall
from dagrpo.utils.files import canonical_json
from dagrpo.utils.tables import read_parquet

AGAIN = "run the stage that makes it again"


def required(name: str, kind: pa.DataType) -> pa.Field:
    """Return a column without nulls."""
    return pa.field(name, kind, nullable=False)


_CALL = pa.struct(
    [
        required("turn", pa.int32()),  # of the policy, from 0
        required("name", pa.string()),
        required("arguments", pa.string()),  # JSON; the text as written where it could not be read
        required("status", pa.string()),
        required("result", pa.string()),  # as the policy saw it
    ]
)
_SAMPLE = pa.struct([required("token_ids", pa.list_(pa.int32())), required("loss_mask", pa.list_(pa.bool_()))])
_FIELDS = [
    required("task", pa.string()),
    required("problem_index", pa.int64()),  # the row of the split
    required(
        "sample_index", pa.int32()
    ),  # GREEDY, or 0, 1, ... for sampled ones; BLIND: for whom the problem had no pictures
    required("prompt", pa.string()),  # as rendered by the chat template
    required("completion", pa.string()),  # what is graded: the last turn without its calls
    required("prompt_ids", pa.list_(pa.int32())),
    required("completion_ids", pa.list_(pa.int32())),  # all tokens that the policy wrote: sample by sample, in order
    required("rollout_logprobs", pa.list_(pa.float32())),  # the engine's, of those tokens
    required("weight_version", pa.string()),  # of the weights that sampled its last turn; "": nothing was sampled
    required("finish_reason", pa.string()),  # of the last turn: "stop" or "length"
    required("ground_truth", pa.string()),
    required("verifier", pa.string()),
    required("question", pa.string()),
    required("sampling_seed", pa.int64()),
    required("turns", pa.int32()),  # of the policy
    required("stop_reason", pa.string()),
    required("fault", pa.string()),  # why it was excluded, or why its program failed
    required("messages", pa.string()),  # a JSON list: the chat messages after the prompt
    required("calls", pa.list_(_CALL)),
    required("samples", pa.list_(_SAMPLE)),  # []: there is one, the prompt and the completion
    required("reported", pa.map_(pa.string(), pa.float32())),  # rewards that a program or an environment reports
]
_ADDED_BY_TRAINING = [
    required("step", pa.int32()),  # from 1
    # the trainer's own, before the update; []: the trajectory was left out of it
    required("trainer_logprobs", pa.list_(pa.float32())),
    required("teacher_logprobs", pa.list_(pa.float32())),  # []: there is no teacher, or the trajectory was left out
    pa.field("extracted", pa.string()),  # null: no answer to read
    required("verdict", pa.string()),  # right, wrong, missing or unverifiable
    pa.field("correct", pa.bool_()),  # null: unverifiable
    required("components", pa.map_(pa.string(), pa.float32())),  # of the reward, unweighted
    # of each token in completion_ids: those that top_p and top_k left it to be drawn from, ids rising; []: all there are.
    # Where it is given, rollout_logprobs and trainer_logprobs are of the softmax over these
    required("sampling_support", pa.list_(pa.list_(pa.int32()))),
    required("reward", pa.float32()),  # what the policy learns from
    required("advantage", pa.float32()),  # the mean over its tokens
    required("token_advantages", pa.list_(pa.float32())),  # []: all of its tokens have the one above
    # drawn in this step and thrown away, since its group says nothing: in no figure of the step, and nothing was learned
    required("discarded", pa.bool_()),
    # of the greedy completion of its problem; null: no advantage asked for one, or it was left out
    pa.field("greedy_reward", pa.float32()),
]
ROLLOUTS = pa.schema(_FIELDS)
OF_CONVERSATIONS = ["turns", "stop_reason", "calls"]  # what a person wants to see of several turns
TRAINING_ROLLOUTS = pa.schema([*_FIELDS, *_ADDED_BY_TRAINING])


def rollout_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Return one row per trajectory, in order; columns as in ROLLOUTS."""
    return pa.Table.from_pylist([_row(trajectory) for trajectory in trajectories], schema=ROLLOUTS)


def training_table(
    step: int,
    graded: Sequence[GradedTrajectory],
    *,
    rewards: Sequence[float],
    advantages: Sequence[float],
    token_advantages: Sequence[Sequence[float]],
    trainer_logprobs: Sequence[Sequence[float]],
    greedy_rewards: Sequence[float | None] | None = None,
    teacher_logprobs: Sequence[Sequence[float]] | None = None,
) -> pa.Table:
    """Return one row per trajectory of the step numbered from 1; columns as in TRAINING_ROLLOUTS.

    rewards, advantages and greedy_rewards: [trajectories]; trainer_logprobs and teacher_logprobs: [trajectories][tokens that
    the policy wrote], and so token_advantages, but empty where they are all the same.
    """
    rows = [
        _training_row(each, step=step, reward=reward)
        | {
            "trainer_logprobs": logprobs,
            "advantage": advantage,
            "token_advantages": of_tokens,
            "greedy_reward": greedy,
            "teacher_logprobs": of_teacher,
        }
        for each, reward, advantage, of_tokens, greedy, logprobs, of_teacher in zip(
            graded,
            rewards,
            advantages,
            token_advantages,
            greedy_rewards or [None] * len(graded),
            trainer_logprobs,
            teacher_logprobs or [[]] * len(graded),
            strict=True,
        )
    ]
    return pa.Table.from_pylist(rows, schema=TRAINING_ROLLOUTS)


def discarded_table(step: int, graded: Sequence[GradedTrajectory]) -> pa.Table:
    """Return a table like `training_table`, of trajectories that the step, from 1, has sampled and discarded."""
    rows = [_training_row(each, step=step, reward=each.score.reward) | {"discarded": True} for each in graded]
    return pa.Table.from_pylist(rows, schema=TRAINING_ROLLOUTS)


def without_discarded(table: pa.Table) -> pa.Table:
    """Return the rows that a step's figures and its update use."""
    return table.filter(pc.invert(table.column("discarded")))


def sighted(table: pa.Table) -> pa.Table:
    """Return the attempts at complete prompts, with their pictures."""
    return table.filter(pc.not_equal(table.column("sample_index"), BLIND))


def blind(table: pa.Table) -> pa.Table:
    """Return the attempts at prompts whose pictures were left out."""
    return table.filter(pc.equal(table.column("sample_index"), BLIND))


def _training_row(graded: GradedTrajectory, *, step: int, reward: float) -> dict[str, Any]:
    """Return the columns of TRAINING_ROLLOUTS for a trajectory that was not trained on."""
    return _row(graded.trajectory) | {
        "step": step,
        "trainer_logprobs": [],
        "teacher_logprobs": [],
        "sampling_support": [ids for sample in graded.trajectory.samples for ids in sample.support],
        "extracted": graded.score.extracted,
        "verdict": graded.score.verdict,
        "correct": graded.score.correct,
        "components": sorted(graded.score.components.items()),
        "reward": reward,
        "advantage": 0.0,
        "token_advantages": [],
        "greedy_reward": None,
        "discarded": False,
    }


def _row(trajectory: Trajectory) -> dict[str, Any]:
    """Return the columns of ROLLOUTS, without seconds and cached tokens, which differ in the next run."""
    prompt, row, samples = trajectory.prompt, trajectory.prompt.row, trajectory.samples
    return {
        "task": row.task,
        "problem_index": prompt.index,
        "sample_index": trajectory.sample_index,
        "prompt": prompt.text,
        "completion": _storable(trajectory.text),
        "prompt_ids": prompt.token_ids,
        "completion_ids": [token for sample in samples for token in sample.completion_ids],
        "rollout_logprobs": [logprob for sample in samples for logprob in sample.completion_logprobs],
        "weight_version": samples[-1].weight_version if samples else "",
        "finish_reason": trajectory.finish_reason,
        "ground_truth": row.ground_truth,
        "verifier": row.verifier,
        "question": row.question,
        "sampling_seed": trajectory.sampling_seed,
        "turns": trajectory.turns,
        "stop_reason": trajectory.stop_reason,
        "fault": _storable(trajectory.fault),
        "messages": _storable(canonical_json(trajectory.messages)),
        "calls": [_call(call) for call in trajectory.calls],
        "samples": [] if _is_one_completion(trajectory) else [_sample(sample) for sample in samples],
        "reported": sorted((_storable(name), value) for name, value in trajectory.reported.items()),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "turn": call.turn,
        "name": _storable(call.name),
        "arguments": _storable(call.arguments),
        "status": call.status,
        "result": _storable(call.result),
    }


def _sample(sample: TokenSample) -> dict[str, Any]:
    return {"token_ids": sample.token_ids, "loss_mask": [*map(bool, sample.loss_mask)]}


def _is_one_completion(trajectory: Trajectory) -> bool:
    """Return True if the attempt is one prompt and one completion, so that the samples add nothing."""
    prompt, samples = trajectory.prompt.token_ids, trajectory.samples
    whole = [slice(len(prompt), len(prompt) + trajectory.tokens)]
    return not samples or (
        len(samples) == 1 and [*samples[0].written] == whole and tuple(samples[0].token_ids[: len(prompt)]) == prompt
    )


def _storable(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair: JSON can spell one, no file in UTF-8 can hold it."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def has_conversations(table: pa.Table) -> bool:
    """Return True if any attempt of a table called a tool, had more than one turn, or went wrong."""
    calls = pc.sum(pc.list_value_length(table.column("calls"))).as_py()
    if calls or (pc.max(table.column("turns")).as_py() or 0) > 1:
        return True
    return bool(pc.any(pc.is_in(table.column("stop_reason"), pa.array(BROKEN))).as_py())


def read_table(path: Path, schema: pa.Schema, *, may_be_empty: bool = False) -> pa.Table:
    """Read a table and check it against its schema. Raises UserError, with the file and the column or row, if it does not fit.

    Columns that the schema does not name are left out.
    """
    table = read_parquet(path)
    if table.num_rows == 0 and not may_be_empty:
        raise UserError(f"{path} has no rows: {AGAIN}.")
    for field in schema:
        if field.name not in table.column_names:
            raise UserError(f"{path}: column `{field.name}` is missing: {AGAIN}.")
        column = table.column(field.name)
        if column.type != field.type:
            raise UserError(f"{path}: column `{field.name}` is {column.type}, not {field.type}: {AGAIN}.")
        if not field.nullable and column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise UserError(f"{path}: row {row}: `{field.name}` is null: {AGAIN}.")
    return table.select(schema.names)
