"""GSM8K: grade-school word problems whose solution ends in `#### n` (Cobbe et al. 2021, arXiv:2110.14168).

Four forms: plain; with a tool that tells whether an answer is right; with a user who does; and the bare question, for
supervised fine-tuning on the worked solutions.
"""

from functools import partial

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat
from dagrpo_answers.verifiers.gsm8k import extract

SOURCE = Source(
    repository="openai/gsm8k",
    configuration="main",
    revision="e53f048856ff4f594e959d75785d2c2d37b678ee",
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
    columns={"question": ("question",), "answer": ("answer",)},
    rows={"train": 7473, "test": 1319},
)
INSTRUCTION = 'Think step by step and give the final answer after "####".'
WITH_TOOL = (
    "You are an expert in mathematics. Work through the problem first. Then check your result with the "
    "answer_check tool, at least once before you settle, and correct it when it was wrong. "
    "Close with the final answer in the form `#### <answer>`."
)
WITH_FEEDBACK = (
    "You are an expert in mathematics. Work through the problem and close with the final answer in the form "
    "`#### <answer>`. When the user tells you that it is wrong, go over your reasoning again and answer anew."
)


def to_row(raw: RawRow, system: str = "", instruction: str = f" {INSTRUCTION}") -> Row:
    """Return one raw row in its prompt form. Raises UserError if its answer does not end in `#### n`, as the verifier needs."""
    question, answer = raw.text("question"), raw.text("answer")
    ground_truth = extract(answer, "strict")
    if ground_truth is None:
        raise raw.error("answer", "has no `####` followed by a number")
    prompt = chat(f"{question}{instruction}", system)
    return Row(prompt=prompt, question=question, answer=answer, ground_truth=ground_truth)


_task = partial(sourced_task, source=SOURCE, verifier="gsm8k")

TASKS = (
    _task("gsm8k", to_row=to_row, prompt_tokens=81),
    _task("gsm8k_tool", to_row=partial(to_row, system=WITH_TOOL), tools=("answer_check",)),
    _task(
        "gsm8k_feedback",
        to_row=partial(to_row, system=WITH_FEEDBACK),
        interaction="gsm8k_feedback",
        prompt_tokens=131,
    ),
    _task("gsm8k_sft", to_row=partial(to_row, instruction=""), prompt_tokens=68),
)
