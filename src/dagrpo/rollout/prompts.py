"""Prompts of a split's rows, and their order in training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.renderers import ChatFormat, ToolSchema, chat_format
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import PromptPictures, Row
from dagrpo.data.schema import from_table
from dagrpo.models.pictures import PictureProcessor
from dagrpo.rollout.config import Conversation
from dagrpo.tools import function_schemas
from dagrpo.utils.tables import read_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimit:
    """Limit of a prompt's tokens, and the remedy for a longer one."""

    tokens: int
    reason: str  # why, and the remedy, such as "training.max_prompt_tokens is 64: raise it"


def read_split(path: Path) -> list[Row]:
    """Read the rows of a split. Raises UserError if it has none."""
    rows = from_table(read_parquet(path))
    if not rows:
        raise UserError(
            f"{path} has no rows: choose tasks (experiment.train, experiment.evaluate) that have a {path.stem} split."
        )
    return rows


class PromptRenderer:
    """Renderer of prompts with the tools that they offer, as section rollout says.

    pictures: the model's processor, if any; then every prompt names its tokens for pictures.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        conversation: Conversation,
        pictures: PictureProcessor | None = None,
    ) -> None:
        self._chat = chat_format(tokenizer, conversation.chat)
        self._pictures = pictures
        self._tools = conversation.tools
        self._schemas: dict[tuple[str, ...], tuple[ToolSchema, ...]] = {}

    def prompt(self, index: int, row: Row) -> Prompt:
        """Return a row of a split, rendered.

        Raises UserError if the template refuses it, would not show a tool's result, or as `render_row`.
        """
        tools, pictures = self._schemas_of(row.tools), self._pictures
        text, token_ids = render_row(self._chat, row, tools, pictures)
        return Prompt(
            index=index,
            row=row,
            text=text,
            token_ids=token_ids,
            tools=tools,
            pictures=None if pictures is None else PromptPictures(files=row.images, tokens=pictures.tokens),
        )

    def _schemas_of(self, names: tuple[str, ...]) -> tuple[ToolSchema, ...]:
        if names not in self._schemas:
            schemas = function_schemas(names, self._tools)
            if schemas:
                self._chat.require_tool_results(schemas)
            self._schemas[names] = schemas
        return self._schemas[names]


def render_row(
    chat: ChatFormat, row: Row, tools: Sequence[ToolSchema], pictures: PictureProcessor | None
) -> tuple[str, tuple[int, ...]]:
    """Return a row's prompt: its text, and its tokens with as many placeholders for each picture as it takes.

    Raises UserError if it has pictures and the model takes none, or if their number differs from that of the placeholders. The output of a
    chat format is checked, too: some take `<|image_pad|>` in a text for a placeholder.
    """
    if pictures is None and not row.images:
        return chat.prompt(row.prompt, tools)
    where = f"task {row.task}, {row.split} row {row.index}"
    if pictures is None:
        raise UserError(
            f"{where}: it has pictures, and the model takes text alone: choose a vision-language model in section model, or "
            "another task."
        )
    text, token_ids = chat.prompt(with_pictures(row.prompt) if row.images else row.prompt, tools)
    try:
        return text, pictures.expanded(token_ids, row.images)
    except UserError as error:
        raise UserError(f"{where}: {error}.") from None


def tools_of(prompts: Iterable[Prompt]) -> tuple[str, ...]:
    """Return the names of the tools that any of them offers, sorted."""
    return tuple(sorted({name for prompt in prompts for name in prompt.row.tools}))


def prompts_of(
    rows: Iterable[tuple[int, Row]], renderer: PromptRenderer, limit: PromptLimit, source: Path
) -> list[Prompt]:
    """Return rows of the split `source` rendered, each with its index. Raises UserError if one is too long."""
    prompts = []
    for index, row in rows:
        prompt = renderer.prompt(index, row)
        if len(prompt.token_ids) > limit.tokens:
            smaller = ", or lower model.max_pixels so that its pictures take fewer" if row.images else ""
            raise UserError(
                f"{source} row {index}: the prompt has {len(prompt.token_ids)} tokens, and {limit.reason}{smaller}."
            )
        prompts.append(prompt)
    return prompts


def prompt_indices(
    seed: int, first: int, count: int, total: int, pass_rates: Sequence[float] | None = None, task: str = ""
) -> list[int]:
    """Return `count` prompts of an endless sequence of shuffled epochs, from the place `first` (0-based) on.

    They depend on the arguments alone, so a resumed run needs no saved position. An epoch's order depends on (seed, epoch) and `task`,
    which is "" unless there are several: tasks of one size would be in step. Each prompt appears once per epoch. With pass rates,
    [total], an epoch goes from the highest to the lowest, and only prompts of equal pass rate are shuffled.
    """
    indices: list[int] = []
    for epoch in range(first // total, (first + count - 1) // total + 1):
        order = epoch_order(seed, epoch, total, pass_rates, task)
        start = max(first - epoch * total, 0)
        stop = min(first + count - epoch * total, total)
        indices += order[start:stop]
    return indices


def epoch_order(
    seed: int, epoch: int, total: int, pass_rates: Sequence[float] | None = None, task: str = ""
) -> list[int]:
    """Return the prompts of an epoch in their order, as `prompt_indices` describes it."""
    order = np.random.default_rng([seed, epoch, *task.encode()]).permutation(total)
    if pass_rates is not None:
        order = order[np.argsort(-np.asarray(pass_rates)[order], kind="stable")]
    return [int(index) for index in order]
