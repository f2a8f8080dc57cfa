"""The table of scores that `score` writes and `report` reads.

`rollout.table` defines what `sample` writes.
"""

import pyarrow as pa

from dagrpo.rollout.table import ROLLOUTS, required

SCORES = pa.schema(
    [
        required("task", pa.string()),
        required("problem_index", pa.int64()),
        required("sample_index", pa.int32()),
        pa.field("extracted", pa.string()),  # null: no answer to read
        pa.field(
            "vote", pa.string()
        ),  # the first answer to the problem that is the same to its verifier; null: as extracted
        required("verdict", pa.string()),  # right, wrong, missing or unverifiable
        required("correct", pa.bool_()),  # verdict is right
        # is the greedy answer without the problem's pictures right; null: not sampled
        pa.field("correct_without_pictures", pa.bool_()),
        required("truncated", pa.bool_()),
        required("completion_tokens", pa.int32()),
        required("completion", pa.string()),
        required("question", pa.string()),
        required("ground_truth", pa.string()),
        # as they were sampled
        *(ROLLOUTS.field(name) for name in ("turns", "stop_reason", "fault", "messages", "calls")),
    ]
)
