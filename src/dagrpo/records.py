"""The frozen records that cross a package boundary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["right", "wrong", "missing", "unverifiable"]


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
    verifier: str = "gsm8k"  # the plug-in of rewards/verifiers that compares an answer with the ground truth
    images: tuple[bytes, ...] = ()  # PNG or JPEG files, RGB; as many as the prompt has `<image>` placeholders
    tools: tuple[str, ...] = ()  # names in tasks/tools.py of what the policy may call
    interaction: str = ""  # name of the simulated user that answers each of the policy's turns; "": none
    pass_rate: float | None = None  # share of right answers of some policy, 0 to 1: how easy it is; None: not known
    prompt_tokens: int = 0  # rendered with its tools by the experiment's tokenizer; 0: not counted yet


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
    weight_version: str = "default"  # of the weights that sampled it, as they were named when they were loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a policy made of one problem, as far as a reward may look at it."""

    text: str  # what the policy wrote, all its turns; never a tool's result, a user's turn or the prompt
    ground_truth: str
    verifier: str
    tokens: int  # written by the policy
    turns: int = 1  # of the policy
    tool_calls: int = 0
    failed_tool_calls: int = 0  # undecodable, unknown, refused or ended in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One graded attempt. `correct` is None where it could not be told within the limits (verdict unverifiable)."""

    extracted: str | None  # the answer as read, None when there is none to read
    correct: bool | None
    reward: float
    verdict: Verdict
    components: Mapping[str, float]  # each reward component with a weight -> its value, unweighted
