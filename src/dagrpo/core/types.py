"""Frozen records that cross a package boundary."""

import dataclasses
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dagrpo.core.errors import UserError
from dagrpo_answers.verifier import Verdict

CallStatus = Literal[
    # as the policy wrote it
    "undecodable",
    "unclosed",
    "missing_name",
    "unknown_tool",
    "wrong_arguments",
    # as it went
    "ok",
    "failed",  # the tool reports the error
    "timed_out",
    "not_run",  # the trajectory was over: its turns, tokens or seconds were used up
]
StopReason = Literal[
    "answered",  # the policy ended without a call
    "user_done",  # the simulated user ended the conversation
    "turn_length",  # a turn was cut off at max_new_tokens, and called nothing
    "max_turns",
    "max_tokens",
    "seconds",
    "template_refused",  # the chat template cannot render the messages
    "program_failed",  # the agent's program died, or never ended its attempt
    "excluded",  # an error in which the policy has no part
]
EXCLUDED: StopReason = "excluded"
BROKEN: tuple[StopReason, ...] = (EXCLUDED, "program_failed")  # ends of an attempt that went wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a task: a question, its ground truth, and its prompt as chat messages.

    A data set's `to_row` leaves out the fields of the task. Example: Row(task="gsm8k", split="test", index=0,
    prompt=({"role": "user", "content": "..."},), question="...", answer="... #### 18", ground_truth="18",
    data_source="openai/gsm8k", ability="math")
    """

    prompt: tuple[dict[str, str], ...]  # chat messages: role, content
    question: str
    answer: str  # the source's own full answer, the target of supervised fine-tuning; "": it has none
    ground_truth: str
    ability: str = "math"
    images: tuple[bytes, ...] = ()  # PNG or JPEG files, RGB; as many as the prompt has `<image>` placeholders
    pass_rate: float | None = None  # share of right answers of some policy, 0 to 1; None: unknown
    prompt_tokens: int = 0  # rendered with its tools by the experiment's tokenizer; 0: not counted yet
    # Chat messages from the first answer on, calls and their results among them: what supervised fine-tuning learns where
    # an answer alone is not enough. (): the target is `answer`.
    demonstration: tuple[Mapping[str, Any], ...] = ()
    # Fields of the task, the same for all of its rows but for split and index.
    task: str = ""
    split: str = ""
    index: int = 0  # in the source's split, before filters
    data_source: str = ""
    verifier: str = "gsm8k"  # the verifier that compares an answer with the ground truth
    tools: tuple[str, ...] = ()  # names of the tools that the policy may call (tools/)
    interaction: str = ""  # name of the simulated user that answers each of the policy's turns; "": none

    def __post_init__(self) -> None:
        """Raise UserError, with the line that makes the row, for a field of another type: a task may be a plug-in's."""
        for name in _TEXTS:
            if not isinstance(value := getattr(self, name), str):
                raise _wrong(name, value, "a text")
        if not _are(self.prompt, Mapping) or not all(
            isinstance(message.get(key), str) for message in self.prompt for key in ("role", "content")
        ):
            raise _wrong("prompt", self.prompt, "chat messages, as `chat(question)` of dagrpo.data.task returns them")
        if not _are(self.images, bytes):
            raise _wrong("images", self.images, "a tuple of the bytes of pictures")
        if not _are(self.tools, str):
            raise _wrong("tools", self.tools, 'a tuple of names, such as ("calculator",)')


_TEXTS = ("question", "answer", "ground_truth", "ability", "task", "split", "data_source", "verifier", "interaction")


def _are(values: object, kind: type) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)


def _wrong(field: str, value: object, right: str) -> UserError:
    """Return the error of a row's field, with the nearest line outside of dataclasses that made the row."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in ("<string>", dataclasses.__file__):
        frame = frame.f_back
    place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    return UserError(
        f"{place}: a row's `{field}` is {repr(value)[:60]} ({type(value).__name__}), not {right}: correct it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTokens:
    """The token ids that mark a picture's position for a vision-language model."""

    image: int  # the placeholder: one for each token that a picture takes
    video: int  # the same of a video
    start: int  # before a picture
    end: int  # after it

    @property
    def unwritten(self) -> tuple[int, int, int]:
        """Return the tokens that no policy may write, which would stand for no picture: placeholders and the tokens before them."""
        return self.image, self.video, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPictures:
    """The pictures of a prompt for a vision-language model, and the tokens that mark their positions."""

    files: tuple[bytes, ...]  # PNG or JPEG files, RGB, in the order of their placeholders; (): it has none
    tokens: PictureTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """A request for one completion: prompt tokens, with a separate seed.

    Always names temperature, top_p and top_k: a server otherwise takes the checkpoint's generation_config.
    """

    input_ids: tuple[int, ...]  # [prompt], with as many placeholders for a picture as it takes tokens
    seed: int  # 0 <= seed < 2**31
    temperature: float  # 0 is greedy
    top_p: float
    top_k: int  # -1: all tokens
    max_new_tokens: int
    support: bool = False  # True: return the sampling mask, the tokens that top_p and top_k leave
    pictures: PromptPictures | None = None  # None: a model of text alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """A request for the logprobs of given tokens, from index `first` on.

    Example: token_ids (5, 6, 7, 8) and first 2: of 7 after (5, 6), and of 8 after (5, 6, 7).
    """

    token_ids: tuple[int, ...]  # [tokens]
    first: int  # index of the first requested token; at least 1, since nothing predicts a sequence's first token
    pictures: PromptPictures | None = None  # None: a model of text alone; all pictures precede `first`


ABORTED = "abort"
VersionRuns = tuple[tuple[str, int], ...]  # names of weights, in order, and how many tokens each has sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The engine's result of one request, token for token; nothing is tokenized again.

    `logprobs` are natural logarithms of the temperature-scaled softmax: over the sampling mask if the request asked for it, else over
    the whole vocabulary, not renormalised by top_p.
    """

    token_ids: tuple[int, ...]  # [completion], the stop token included when there is one
    logprobs: tuple[float, ...]  # [completion]
    # "stop" or "length"; "length" also where it was cut before a token that no policy may write (PictureTokens.unwritten); ABORTED:
    # the engine was asked to abort it
    finish_reason: str
    weight_version: str = "default"  # of the weights that sampled it, as named when loaded
    earlier: "VersionRuns" = ()  # of its first tokens, if other weights than `weight_version` sampled them
    cached_tokens: int = 0  # of the prompt, from the server's prefix cache
    # [completion], ids from low to high: the sampling mask of each position: tokens that top_p and top_k leave; (): not requested
    support: tuple["array[int]", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, with its outcome."""

    turn: int  # of the policy, from 0
    name: str  # "" if unreadable
    arguments: str  # JSON; the text as written if unreadable
    status: CallStatus
    result: str  # the text returned to the policy; "": no text
    seconds: float = 0.0  # of the clock: part of no versioned output


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Verdict on one answer and, of a trajectory, its reward."""

    extracted: str | None  # the answer as read; None without one (verdict missing)
    verdict: Verdict
    verifier: str  # the one that judged: reward.verifier, or the row's own
    reward: float = 0.0
    passed: float | None = (
        None  # share of tests that a program passes, or of instructions followed; None: not asked for, or no answer
    )
    components: Mapping[str, float] = field(
        default_factory=dict
    )  # each component with a weight -> its value, unweighted

    @property
    def correct(self) -> bool | None:
        """Return whether the answer is right; None if that could not be decided within the limits (verdict unverifiable)."""
        return None if self.verdict == "unverifiable" else self.verdict == "right"
