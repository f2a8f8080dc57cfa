"""Session of one attempt with the policy: a tree of recorded turns.

Our own agent loop asks here directly; an external program asks through the gateway. Either way the tokens of a
turn are those of an earlier one, the chat format's tokens in between, and those that the engine then writes. Where the format
would rewrite earlier messages, or a program goes back, the tree forks, and the trajectory has one more sample.
"""

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.renderers import ChatFormat, Message, ParsedAnswer, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import picture_lengths, with_lengths
from dagrpo.core.trajectory import Prompt, TokenSample, Trajectory
from dagrpo.core.types import Completion, StopReason, ToolCall
from dagrpo.engine.errors import ServerError
from dagrpo_answers.own_text import opened_thought, without_thoughts

Complete = Callable[[tuple[int, ...], int], Awaitable[Completion]]
"""Has the policy continue some tokens, [prompt], by at most so many."""
PROMPT_TAIL = 40  # characters, enough for the mark of a thought
# Most characters of new messages that are rendered, in all and for each token of the limit: a tokenizer takes a second for 3 million,
# in which the event loop would wait, and then no limit has room for them.
RENDERED, RENDERED_PER_TOKEN = 1 << 18, 8


class SessionOver(Exception):
    """Error of an attempt that has used up its turns or its tokens: there will be no further turn."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one attempt."""

    turns: int
    tokens: int  # of one sample, prompt and results included
    new_tokens: int  # of one turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of the policy, and everything that led to it."""

    number: int  # in the order in which they were answered, from 0
    parent: "Turn | None"  # the turn whose tokens it extends; None: its prompt was rendered afresh
    prompt: tuple[int, ...]  # [prompt], the parent's prompt and completion at its beginning
    completion: Completion
    answer: ParsedAnswer
    messages: tuple[Message, ...]  # the whole conversation, with the answer at its end


class Session:
    """Turns of one attempt. `seed` is that of the attempt; `name` identifies it."""

    def __init__(
        self, *, prompt: Prompt, chat: ChatFormat, complete: Complete, limits: SessionLimits, seed: int, name: str
    ) -> None:
        self.prompt = prompt
        self.seed = seed
        self.name = name
        self.turns: list[Turn] = []
        self.chat = chat
        self.failure: ServerError | None = None  # of the engine: the run is over, whatever the agent makes of it
        self._complete = complete
        self.limits = limits
        self._started = 0

    async def ask(
        self,
        new: Sequence[Message],
        after: Turn | None = None,
        tools: Sequence[ToolSchema] | None = None,
        *,
        most: int | None = None,
    ) -> Turn:
        """Ask for the policy's next turn: after `new` messages, which follow a turn or, without one, begin the conversation.

        `tools` are the prompt's unless a program brings others; at most `most` tokens are written, and never more than the
        limits allow. Raises SessionOver, before any request, if turns or tokens are used up, and ServerError if the engine fails.
        """
        self.require_another_turn()
        offered = self.prompt.tools if tools is None else tools
        if not self.may_fit(sum(len(message.get("content") or "") for message in new)):
            raise SessionOver("max_tokens")
        parent, prompt = self._prompt(new, after, offered)
        room = self.limits.tokens - len(prompt)
        if room < 1:
            raise SessionOver("max_tokens")
        self._started += 1
        try:
            completion = await self._complete(prompt, min(room, self.limits.new_tokens, most or room))
        except ServerError as error:
            self.failure = error
            raise
        answer = self.chat.parse(prompt, completion.token_ids, offered)
        before = after.messages if after else ()
        turn = Turn(
            number=len(self.turns),
            parent=parent,
            prompt=prompt,
            completion=completion,
            answer=answer,
            messages=(*before, *new, self.chat.message(answer)),
        )
        self.turns.append(turn)
        return turn

    def require_another_turn(self) -> None:
        """Raise SessionOver if the attempt has used up its turns."""
        if self._started >= self.limits.turns:
            raise SessionOver("max_turns")

    def may_fit(self, characters: int) -> bool:
        """Return False for texts that are too long for the limit of tokens by their number of characters."""
        return characters <= max(RENDERED, RENDERED_PER_TOKEN * self.limits.tokens)

    def _prompt(
        self, new: Sequence[Message], after: Turn | None, tools: Sequence[ToolSchema]
    ) -> tuple[Turn | None, tuple[int, ...]]:
        """Return the turn that is extended, if any, and the tokens that the policy continues."""
        if after is None and tuple(new) == self.prompt.row.prompt and tuple(tools) == self.prompt.tools:
            return None, self.prompt.token_ids
        if after is None:
            return None, self._rendered(new, tools)
        between = self.chat.extension(after.prompt, after.completion.token_ids, new, tools)
        if between is None:
            return None, self._afresh([*after.messages, *new], tools)
        return after, (*after.prompt, *after.completion.token_ids, *between)

    def _afresh(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Render a conversation with answers of the policy in it. Raises SessionOver if the template refuses them."""
        try:
            return self._rendered(messages, tools)
        except UserError:
            raise SessionOver("template_refused") from None

    def _rendered(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Render a conversation that begins with the row's prompt, and its pictures. Raises UserError if the template refuses it."""
        pictures = self.prompt.pictures
        if pictures is None:
            return self.chat.prompt(messages, tools)[1]
        begin = len(self.prompt.row.prompt) if pictures.files else 0
        token_ids = self.chat.prompt([*with_pictures(messages[:begin]), *messages[begin:]], tools)[1]
        lengths = picture_lengths(self.prompt.token_ids, pictures.tokens)
        expanded = with_lengths(token_ids, pictures.tokens, lengths)
        if expanded is None:
            raise UserError(
                f"the chat template does not show exactly the {len(lengths)} pictures of the problem in this conversation: "
                "leave the messages of the problem at its beginning, and `<|image_pad|>` and the like out of all others"
            )
        return expanded

    def samples(self) -> tuple[TokenSample, ...]:
        """Return one sample per leaf of the tree, in the order of the leaves; a turn that several share counts in the first of them."""
        inner = {id(turn.parent) for turn in self.turns}
        counted: set[int] = set()
        samples = []
        for leaf in (turn for turn in self.turns if id(turn) not in inner):
            own = [turn for turn in _path(leaf) if id(turn) not in counted]
            counted |= {id(turn) for turn in own}
            samples.append(_sample(leaf, own))
        return tuple(samples)


def _path(leaf: Turn) -> list[Turn]:
    path = [leaf]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path[::-1]


def _sample(leaf: Turn, own: Sequence[Turn]) -> TokenSample:
    """Return the leaf's tokens; only the completions of the turns `own` are trained on."""
    token_ids = array("i", leaf.prompt + leaf.completion.token_ids)
    mask, logprobs = bytearray(len(token_ids)), array("d", bytes(8 * len(token_ids)))
    for turn in own:
        completion = array("i", turn.completion.token_ids)
        span = slice(len(turn.prompt), len(turn.prompt) + len(completion))
        assert token_ids[span] == completion, "a turn's tokens are not part of its sample"
        mask[span] = b"\1" * len(completion)
        logprobs[span] = array("d", turn.completion.logprobs)
    return TokenSample(
        token_ids=token_ids,
        loss_mask=mask,  # type: ignore[arg-type]  # a byte is as good as a bool
        logprobs=logprobs,
        weight_version=leaf.completion.weight_version,
        earlier=leaf.completion.earlier,  # of an attempt with a single turn: others start again
        support=tuple(ids for turn in own for ids in turn.completion.support),
    )


def trajectory_of(
    session: Session,
    sample_index: int,
    *,
    stop_reason: StopReason,
    calls: Sequence[ToolCall] = (),
    reported: Mapping[str, float] | None = None,
    fault: str = "",
) -> Trajectory:
    """Return the trajectory of a finished session. Raises the engine's error if the agent has hidden it."""
    if session.failure is not None:
        raise session.failure
    turns = session.turns
    last = turns[-1] if turns else None
    return Trajectory(
        prompt=session.prompt,
        sample_index=sample_index,
        sampling_seed=session.seed,
        samples=session.samples(),
        text=_graded(session.prompt.text, session.chat, last),
        finish_reason=last.completion.finish_reason if last else "stop",
        turns=len(turns),
        messages=last.messages[len(session.prompt.row.prompt) :] if last else (),
        calls=tuple(calls),
        stop_reason=stop_reason,
        fault=fault,
        reported=reported or {},
        dropped_calls=sum(turn.answer.dropped_calls for turn in turns),
        cached_tokens=sum(turn.completion.cached_tokens for turn in turns),
        prompt_tokens=sum(len(turn.prompt) for turn in turns),
        max_new_tokens=session.limits.new_tokens,
    )


def answer_of(session: Session, turn: Turn) -> str:
    """Return what a user reads of a turn without calls. A thought that its prompt opened begins with its mark, unless it is parsed."""
    opened = opened_thought(session.prompt.text[-PROMPT_TAIL:]) if turn.answer.is_whole else ""
    return opened + turn.answer.content


def without_thoughts_of(session: Session, turn: Turn, text: str) -> str:
    """Return a text of a turn without its thoughts, as reward functions and programs get it, like the verifiers (docs/rewards.md)."""
    opened = opened_thought(session.prompt.text[-PROMPT_TAIL:]) if turn.answer.is_whole else ""
    rest = without_thoughts(opened + text)
    return rest if rest == text else rest.strip()


def _graded(prompt: str, chat: ChatFormat, last: Turn | None) -> str:
    """Return the last turn as written, without its calls (an argument is no answer).

    Before it stands the mark of a thought that its prompt opened, as all prompts of a template do.
    """
    if last is None:
        return ""
    if last.answer.calls:
        return last.answer.content
    text, answer = chat.text(last.completion.token_ids), last.answer
    opened = opened_thought(prompt[-PROMPT_TAIL:])
    if opened or answer.is_whole or not answer.thinking or text.lstrip().startswith("<think>"):
        return opened + (answer.content if answer.is_whole else text)
    if "</think>" in text or not answer.content.strip():
        return f"<think>{text}"  # of a family whose mark is a special token
    return answer.content
