"""Token sequences of supervised fine-tuning, from train split rows.

A row's target is its answer or, if it has one, its demonstration. The tokens are those of a rollout in which the policy had said
just that, turn by turn, and only the policy's messages are learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import ChatFormat, Message, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import before_pictures
from dagrpo.core.section import Section
from dagrpo.core.types import Row
from dagrpo.models.pictures import PictureProcessor
from dagrpo.rollout.prompts import read_split, render_row
from dagrpo.tools import function_schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedSequence:
    """Tokens of one row.

    Example: prompt (5, 6), target (7, 3): token_ids (5, 6, 7, 3), loss_mask (F, F, T, T).
    """

    token_ids: tuple[int, ...]  # [tokens], from the prompt's first on
    loss_mask: tuple[bool, ...]  # [tokens], True on what is learned
    pictures: tuple[bytes, ...] = ()  # files, in the order of their placeholders among the tokens


def supervised_sequences(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    chat: ChatFormat,
    tools: Mapping[str, Section],
    pictures: PictureProcessor | None = None,
) -> list[SupervisedSequence]:
    """Return the sequence to learn from each row of a train split. Raises UserError, which names a row without a usable target.

    tools: the parameters of tools, by name. pictures: those of the model, if it takes pictures.
    """
    rows = read_split(path)
    supervision = Supervision(tokenizer, chat, pictures)
    schemas = {offered: function_schemas(offered, tools) for offered in {row.tools for row in rows}}
    return [supervision.sequence(row, schemas[row.tools], f"{path} row {index}") for index, row in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class Supervision:
    """Writer of rows as the tokens of a rollout."""

    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat
    pictures: PictureProcessor | None = None

    def sequence(self, row: Row, tools: Sequence[ToolSchema], where: str) -> SupervisedSequence:
        """Return the tokens of a row, which errors call `where`."""
        if not (row.demonstration or row.answer.strip()):
            raise UserError(f"{where}: {row.data_source} has no solutions to fine-tune on: set sft.steps to 0.")
        turns = row.demonstration or ({"role": "assistant", "content": row.answer},)
        token_ids = list(render_row(self.chat, row, tools, self.pictures)[1])
        loss_mask = [False] * len(token_ids)
        for message, new in _turns(turns):
            prompt, completion = tuple(token_ids), self._completion(message, token_ids, tools, where)
            between = self._between(prompt, completion, new, tools, where)
            token_ids += [*completion, *between]
            loss_mask += [True] * len(completion) + [False] * len(between)
        return SupervisedSequence(token_ids=tuple(token_ids), loss_mask=tuple(loss_mask), pictures=row.images)

    def _completion(
        self, message: Message, prompt: Sequence[int], tools: Sequence[ToolSchema], where: str
    ) -> tuple[int, ...]:
        """Return the tokens that the policy is to write, including the end of its turn."""
        try:
            text = self.chat.spelled(message)
        except UserError as error:
            raise UserError(f"{where} has a demonstration that cannot be written: {error}") from None
        written = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        self._require_no_picture(written, where)
        completion = (*written, self.tokenizer.eos_token_id)
        if message.get("tool_calls"):
            self._require_read_again(message, prompt, completion, tools, where)
        return completion

    def _require_no_picture(self, written: Sequence[int], where: str) -> None:
        if self.pictures is not None and before_pictures(written, self.pictures.tokens) < len(written):
            raise UserError(
                f"{where} has an answer with a token of pictures in it, such as `<|image_pad|>`, and an answer shows none: correct "
                "the task's data."
            )

    def _require_read_again(
        self,
        message: Message,
        prompt: Sequence[int],
        completion: Sequence[int],
        tools: Sequence[ToolSchema],
        where: str,
    ) -> None:
        """Raise UserError if a written call is parsed as another one, which would be learned in vain."""
        meant = [_called(call) for call in message["tool_calls"]]
        read = self.chat.parse(prompt, completion, tools).calls
        faults = [call.fault for call in read if call.status != "ok"]
        if faults or [(call.name, dict(call.arguments)) for call in read] != meant:
            reason = faults[0].rstrip(".") if faults else f"{len(read)} calls are read where {len(meant)} were meant"
            raise UserError(
                f"{where} demonstrates a call that rollout.chat does not read as one of the task's tools ({reason}): "
                "choose another rollout.chat, or correct the task's demonstrations."
            )

    def _between(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        where: str,
    ) -> tuple[int, ...]:
        """Return the tokens between two turns of the policy; none after the last."""
        between = self.chat.extension(prompt, completion, new, tools) if new else ()
        if between is None:
            raise UserError(
                f"{where} has a demonstration of several turns, and the model's chat template rewrites earlier turns in "
                "later ones: use another model, or set sft.steps to 0."
            )
        return between


def _turns(messages: Sequence[Message]) -> list[tuple[Message, list[Message]]]:
    """Return each message of the policy, with the messages that follow it before its next one."""
    turns: list[tuple[Message, list[Message]]] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append((message, []))
        else:
            turns[-1][1].append(message)
    return turns


def _called(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return call["function"]["name"], dict(call["function"]["arguments"])
