"""How often each way to build the next turn's prompt loses the tokens that the policy wrote, and what each costs.

    python benchmarks/break_table.py ../shared/data/qwen3_tokenizer [conversations]

Random conversations with Qwen3's tokenizer: unicode, JSON in several spellings, broken calls, markers within arguments,
thinking, 8% of the turns cut off, half of them in tokens that no tokenizer would choose. A way breaks a boundary where its
prompt does not begin with the tokens so far; it may also decline, and then a new sample begins.
"""

import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dagrpo.chat.renderers import CHATS, ChatFormat, Message

TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Finds x.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
    for name in ("calc", "search")
)
WORDS = ("alpha", "Größe", "数学", "🙂", "x=3", "\n", "1,000.50", "{a}", "json", "  ", '"q"', "\\n", "naïve")
MARKERS = ("</tool_call>", "<tool_call>", "a</think>b")
CUT_OFF, BROKEN, USER_TURNS = 0.08, 0.06, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A prompt, what the policy made of it, and the messages that follow."""

    history: Sequence[Message]  # before the completion
    prompt: list[int]
    completion: list[int]
    new: Sequence[Message]


@dataclass(slots=True)
class Count:
    """What became of the boundaries by one way."""

    kept: int = 0
    broken: int = 0
    declined: int = 0
    seconds: list[float] = field(default_factory=list)


Way = Callable[[Boundary], "Sequence[int] | None"]


class Ways:
    """Four ways to build the next prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.template = _bound(tokenizer, "template")
        self._renderers = _bound(tokenizer, "renderers", family="qwen3")

    def table(self) -> dict[str, Way]:
        return {
            "parse and render again": self.rendered_again,
            "difference of two renderings": self.difference,
            "sentinel suffix (`template`)": lambda boundary: _extended(self.template, boundary),
            "bridge of `renderers`": lambda boundary: _extended(self._renderers, boundary),
        }

    def rendered_again(self, boundary: Boundary) -> Sequence[int]:
        answer = self.template.parse(boundary.prompt, boundary.completion, TOOLS)
        return self.template.prompt([*boundary.history, self.template.message(answer), *boundary.new], TOOLS)[1]

    def difference(self, boundary: Boundary) -> Sequence[int] | None:
        """What the template adds for the new messages, with the completion's text as the answer's content."""
        end = self._tokenizer.eos_token
        text = self._tokenizer.decode(boundary.completion).removesuffix(end)
        before = self.template.prompt(boundary.history, TOOLS)[0] + text + end
        answer = {"role": "assistant", "content": text}
        whole = self.template.prompt([*boundary.history, answer, *boundary.new], TOOLS)[0]
        if not whole.startswith(before):
            return []
        ended = boundary.completion[-1:] == [self._tokenizer.eos_token_id]
        suffix = ("" if ended else end) + whole[len(before) :]
        return [*boundary.prompt, *boundary.completion, *_encoded(self._tokenizer, suffix)]


def main() -> None:
    """Print the table."""
    folder, conversations = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ways = Ways(tokenizer)
    counts = {kind: {name: Count() for name in ways.table()} for kind in ("tool", "user")}
    agreement: dict[bool, int] = defaultdict(int)
    for seed in range(conversations):
        for boundary in boundaries(tokenizer, ways.template, random.Random(seed)):
            kind = "user" if boundary.new[0]["role"] == "user" else "tool"
            results = {name: measured(way, boundary, counts[kind][name]) for name, way in ways.table().items()}
            ours, theirs = list(results.values())[-2:]
            if ours is not None and theirs is not None:
                agreement[list(ours) == list(theirs)] += 1
    report(counts)
    print(f"\nsuffix and bridge, where both go on: {agreement[True]} equal, {agreement[False]} not")


def measured(way: Way, boundary: Boundary, count: Count) -> Sequence[int] | None:
    """One way at one boundary."""
    before = [*boundary.prompt, *boundary.completion]
    start = time.perf_counter()
    following = way(boundary)
    count.seconds.append(time.perf_counter() - start)
    if following is None:
        count.declined += 1
    elif list(following[: len(before)]) == before:
        count.kept += 1
    else:
        count.broken += 1
    return following


def report(counts: dict[str, dict[str, Count]]) -> None:
    """The table, with costs relative to the sentinel suffix."""
    own = {kind: statistics.median(list(ways.values())[2].seconds) for kind, ways in counts.items()}
    print("| before | way | boundaries | broken | new sample | cost |\n|---|---|---|---|---|---|")
    for kind, ways in counts.items():
        for name, count in ways.items():
            total = len(count.seconds)
            cost = statistics.median(count.seconds) / own[kind]
            print(
                f"| {kind} | {name} | {total:,} | {count.broken / total:.0%} | {count.declined / total:.0%} | {cost:.1f} |"
            )
    print(f"\none suffix: {own['tool'] * 1000:.2f} ms")


def boundaries(tokenizer: PreTrainedTokenizerBase, chat: ChatFormat, numbers: random.Random) -> list[Boundary]:
    """The boundaries of one conversation."""
    history: list[Message] = [{"role": "user", "content": words(numbers, 10) or "q"}]
    prompt = list(chat.prompt(history, TOOLS)[1])
    thinks, found = numbers.random() < 0.5, []
    for _ in range(numbers.randint(2, 5)):
        completion = sampled(tokenizer, numbers, answer_of(numbers, thinks))
        if numbers.random() >= CUT_OFF:
            completion.append(int(tokenizer.eos_token_id))
        new: list[Message] = [{"role": "tool", "content": words(numbers, 10)} for _ in range(numbers.choice([1, 1, 2]))]
        if numbers.random() < USER_TURNS:
            new = [{"role": "user", "content": words(numbers, 6) or "more"}]
        boundary = Boundary(history=list(history), prompt=prompt, completion=completion, new=new)
        found.append(boundary)
        history += [chat.message(chat.parse(prompt, completion, TOOLS)), *new]
        following = _extended(chat, boundary)
        prompt = list(chat.prompt(history, TOOLS)[1]) if following is None else following
    return found


def answer_of(numbers: random.Random, thinks: bool) -> str:
    """What a policy may write."""
    text = f"<think>\n{words(numbers, 20)}{numbers.choice(CLOSED)}" if thinks else ""
    text += words(numbers, 8)
    for _ in range(numbers.choice([0, 1, 1, 1, 2])):
        body = f'{{"name": "{numbers.choice(["calc", "search"])}", "arguments": {spelled(numbers)}}}'
        if numbers.random() < BROKEN:
            body = body[: numbers.randint(1, len(body))]
        text += numbers.choice(["\n<tool_call>\n{}\n</tool_call>", "<tool_call>{}</tool_call>"]).replace("{}", body, 1)
    return text


CLOSED = ("\n</think>\n\n", "</think>", "\n</think>\n")


def spelled(numbers: random.Random) -> str:
    """Arguments in one of several spellings of JSON."""
    value: Any = numbers.choice([None, True, 10**12, 1e5, words(numbers, 6), [1, {"x": words(numbers, 3)}]])
    if numbers.random() < 0.15:
        value = numbers.choice(MARKERS)
    separators = numbers.choice([None, (",", ":"), (", ", ": ")])
    return json.dumps({"x": value}, ensure_ascii=numbers.random() < 0.3, separators=separators)


def words(numbers: random.Random, most: int) -> str:
    """Some odd words."""
    return " ".join(numbers.choice(WORDS) for _ in range(numbers.randint(0, most)))


def sampled(tokenizer: PreTrainedTokenizerBase, numbers: random.Random, text: str) -> list[int]:
    """A text's tokens; every second time as a sampler may choose them, cut at random places."""
    if numbers.random() < 0.5:
        return _encoded(tokenizer, text)
    token_ids: list[int] = []
    while text:
        length = numbers.randint(1, 12)
        piece, text = text[:length], text[length:]
        token_ids += _encoded(tokenizer, piece)
    return token_ids


def _extended(chat: ChatFormat, boundary: Boundary) -> list[int] | None:
    between = chat.extension(boundary.prompt, boundary.completion, boundary.new, TOOLS)
    return None if between is None else [*boundary.prompt, *boundary.completion, *between]


def _bound(tokenizer: PreTrainedTokenizerBase, name: str, **keys: Any) -> ChatFormat:
    chat = CHATS.get(name)
    return chat.bind(tokenizer, chat.config(name=name, **keys))


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


if __name__ == "__main__":
    main()
