"""Tables of rollouts: one Arrow schema, to which training adds columns."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import BLIND
from dagrpo.core.types import BROKEN
from dagrpo.utils.tables import read_parquet

AGAIN = "run the stage that makes it again"
ALL = "all"  # columns of a row are as the step had them
ROUNDED = "rounded"  # logprobs are rounded, and what only a replay reads is left out
REWARDS = "rewards"  # texts, tokens and logprobs are left out
DIFFERENCE_BITS = 5  # significant bits of a logprob's difference: 3%


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
    required(
        "messages", pa.string()
    ),  # a JSON list: the chat messages after the prompt; []: the completion is the only one
    required("calls", pa.list_(_CALL)),
    required("samples", pa.list_(_SAMPLE)),  # []: there is one, the prompt and the completion
    required("reported", pa.map_(pa.string(), pa.float32())),  # rewards that a program or an environment reports
]
_ADDED_BY_TRAINING = [
    required("step", pa.int32()),  # from 1
    # the trainer's logprobs before the update minus the engine's, to DIFFERENCE_BITS; []: the trajectory was left out of it
    required("logprob_differences", pa.list_(pa.float32())),
    required("teacher_logprobs", pa.list_(pa.float32())),  # []: there is no teacher, or the trajectory was left out
    pa.field("extracted", pa.string()),  # null: no answer to read
    required("verdict", pa.string()),  # right, wrong, missing or unverifiable
    pa.field("correct", pa.bool_()),  # null: unverifiable
    required("components", pa.map_(pa.string(), pa.float32())),  # of the reward, unweighted
    # of each token in completion_ids: those that top_p and top_k left it to be drawn from, ids rising; []: all there are.
    # Where it is given, rollout_logprobs and the trainer's are of the softmax over these
    required("sampling_support", pa.list_(pa.list_(pa.int32()))),
    required("reward", pa.float32()),  # what the policy learns from
    required("advantage", pa.float32()),  # the mean over its tokens
    required("token_advantages", pa.list_(pa.float32())),  # []: all of its tokens have the one above
    # drawn in this step and thrown away, since its group says nothing: in no figure of the step, and nothing was learned
    required("discarded", pa.bool_()),
    # of the greedy completion of its problem; null: no advantage asked for one, or it was left out
    pa.field("greedy_reward", pa.float32()),
    # (name of weights, tokens): those of the first completion_ids that earlier weights sampled; weight_version is of the rest
    required("earlier_versions", pa.map_(pa.string(), pa.int32())),
    required("completion_tokens", pa.int32()),  # that the policy wrote, whatever runtime.keep_rollouts left out
    required("kept", pa.string()),  # ALL, ROUNDED or REWARDS
]
ROLLOUTS = pa.schema(_FIELDS)
TRAINING_ROLLOUTS = pa.schema([*_FIELDS, *_ADDED_BY_TRAINING])


def without_discarded(table: pa.Table) -> pa.Table:
    """Return the rows that a step's figures and its update use."""
    return table.filter(pc.invert(table.column("discarded")))


def with_texts(table: pa.Table) -> pa.Table:
    """Return the rows that have their texts and tokens: all in a table that runtime.keep_rollouts does not concern."""
    return table.filter(pc.not_equal(table["kept"], REWARDS)) if "kept" in table.column_names else table


def sighted(table: pa.Table) -> pa.Table:
    """Return the attempts at complete prompts, with their pictures."""
    return table.filter(pc.not_equal(table.column("sample_index"), BLIND))


def blind(table: pa.Table) -> pa.Table:
    """Return the attempts at prompts whose pictures were left out."""
    return table.filter(pc.equal(table.column("sample_index"), BLIND))


def has_conversations(table: pa.Table) -> bool:
    """Return True if any attempt of a table called a tool, had more than one turn, or went wrong."""
    calls = pc.sum(pc.list_value_length(table.column("calls"))).as_py()
    if calls or (pc.max(table.column("turns")).as_py() or 0) > 1:
        return True
    return bool(pc.any(pc.is_in(table.column("stop_reason"), pa.array(BROKEN))).as_py())


def read_table(path: Path, schema: pa.Schema, *, may_be_empty: bool = False) -> pa.Table:
    """Read the columns of a schema. Raises UserError, which names the file, without rows, or without one of the columns.

    Columns that the schema does not name are left out.
    """
    table = read_parquet(path)
    if table.num_rows == 0 and not may_be_empty:
        raise UserError(f"{path} has no rows: {AGAIN}.")
    for name in schema.names:
        if name not in table.column_names:
            raise UserError(f"{path}: column `{name}` is missing: {AGAIN}.")
    return table.select(schema.names)
