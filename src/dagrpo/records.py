"""The frozen records that cross a package boundary."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One problem of a task, in the form in which the policy sees it.

    Example: Example(task="gsm8k", split="test", index=0, prompt=({"role": "user", "content": "..."},), question="...",
    answer="... #### 18", ground_truth="18", data_source="openai/gsm8k", ability="math")
    """

    task: str
    split: str
    index: int
    prompt: tuple[dict[str, str], ...]  # chat messages: role, content
    question: str
    answer: str  # the source's own full answer, the target of supervised fine-tuning
    ground_truth: str
    data_source: str
    ability: str = "math"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """One completion to sample: prompt tokens in, with a seed of its own.

    Always names temperature, top_p and top_k: a server otherwise takes the checkpoint's generation_config.
    """

    input_ids: tuple[int, ...]  # [prompt]
    seed: int  # 0 <= seed < 2**31
    temperature: float  # 0 is greedy
    top_p: float
    top_k: int  # -1: all tokens
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine returned for one request, token for token; nothing is tokenized again.

    `logprobs` are natural logarithms of the temperature-scaled full softmax, not renormalised by top_p.
    """

    token_ids: tuple[int, ...]  # [completion], the stop token included when there is one
    logprobs: tuple[float, ...]  # [completion]
    finish_reason: str  # "stop" or "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One graded completion. `correct` is None only where it could not be graded."""

    extracted: str | None  # the answer as read, None when there is none to read
    correct: bool | None
    reward: float
