"""IFEval: 541 prompts with verifiable instructions (Zhou et al. 2023, arXiv:2311.07911).

For evaluation only.
"""

import json
from typing import Any

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="google/IFEval",
    revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
    hub_splits={"test": "train"},
    mirror_files={"test": "ifeval/test.jsonl"},
    columns={"prompt": ("prompt",), "names": ("instruction_id_list",), "parameters": ("kwargs",)},
    rows={"test": 541},
)


def to_row(raw: RawRow) -> Row:
    """Return one row. Raises UserError unless it has parameters for each instruction; null ones are left out."""
    prompt, names, listed = raw.text("prompt"), raw.texts("names"), raw.fields["parameters"]
    if not isinstance(listed, list) or len(listed) != len(names):
        raise raw.error("parameters", "does not hold parameters for each instruction")
    pairs = [(name, _given(own)) for name, own in zip(names, listed, strict=True)]
    return Row(prompt=chat(prompt), question=prompt, answer="", ground_truth=json.dumps(pairs), ability="instructions")


def _given(parameters: Any) -> Any:
    return {k: v for k, v in parameters.items() if v is not None} if isinstance(parameters, dict) else parameters


TASKS = (sourced_task("ifeval", SOURCE, to_row, verifier="ifeval"),)
