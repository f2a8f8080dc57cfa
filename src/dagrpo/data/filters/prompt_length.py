"""Filters on prompts: their length in tokens, and the tools they show.

Tools count, and pictures where the model has a vision tower. The texts and tokens are those that rendering.py gives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.rendering import TemplateRefusal, prompt_text
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import IMAGE
from dagrpo.core.section import Section
from dagrpo.core.types import Row
from dagrpo.data.filters.sieve import Sieve
from dagrpo.models.chat_template import fitting_templates
from dagrpo.models.pictures import PictureProcessor, processor_of
from dagrpo.tools import function_schemas
from dagrpo.utils.console import counted
from dagrpo.utils.files import read_object

CHUNK = 256  # prompts at a time: token ids of all of them at once would need hundreds of megabytes


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    row: Row,
    schemas: Sequence[dict[str, Any]] = (),
    *,
    pictures: bool = False,
) -> str:
    """Return the prompt of a problem with its tools.

    pictures: whether the template takes pictures; each is one placeholder. Raises UserError, which names the problem, if the chat template
    refuses it.
    """
    messages = with_pictures(row.prompt) if pictures and row.images else row.prompt
    try:
        return prompt_text(tokenizer, messages, list(schemas))
    except TemplateRefusal as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt of task {row.task}, {row.split} "
            f"row {row.index} ({reason}): choose another model, or another task."
        ) from None


def count_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, as `render` would give them."""
    return [
        count for start in range(0, len(texts), CHUNK) for count in _counts(tokenizer, texts[start : start + CHUNK])
    ]


def _counts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    if tokenizer.is_fast:  # without each token's position in the text, which would take five times as long
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # its file may say otherwise
        backend.no_padding()
        encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return [len(token_ids) for token_ids in encoded["input_ids"]]


LONG = "prompt too long"
DEFAULTS: Mapping[str, Section] = {}  # every tool has the parameters that it ships with

TEMPLATE = "template"  # rollout.chat.name: by the model's own chat template; every other format has its own way to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Statistics of a split's prompt lengths, in tokens."""

    min: int
    median: int
    percent_95: int  # as many tokens or fewer have 95% of the problems
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Prompt lengths of all splits, for the card."""

    images_counted: bool  # whether a picture is as many tokens as it takes, and not the text of its place
    tools_shown: bool | None  # whether the chat template tells the policy of its tools; None: it has none
    splits: Mapping[str, Lengths | None]  # None: a split without problems


def count_prompt_tokens(sieve: Sieve, model: Path, parameters: Mapping[str, Section] = DEFAULTS) -> bool | None:
    """Set `prompt_tokens` of every remaining problem.

    Returns whether the template describes the tools, as some do not; None without tools. parameters: those of tools, by name. Raises
    UserError if the model's chat template refuses a problem, or if the number of pictures differs from that of its placeholders.
    """
    tokenizer = load_tokenizer(model)
    pictures = processor_of(model)
    offered = {row.tools for row in sieve.rows()}
    schemas = {tools: function_schemas(tools, parameters) for tools in offered}
    for split, rows in sieve.splits.items():
        with_progress = counted(rows, f"prepare: tokens of {split} prompts")
        counts = count_tokens(
            tokenizer,
            [rendered(tokenizer, row, schemas[row.tools], pictures=pictures is not None) for row in with_progress],
        )
        sieve.splits[split] = [
            replace(row, prompt_tokens=count + (_more(row, pictures) if pictures else 0))
            for row, count in zip(rows, counts, strict=True)
        ]
    with_tools = next((row for row in sieve.rows() if row.tools), None)
    if with_tools is None:
        return None
    return rendered(tokenizer, with_tools, schemas[with_tools.tools]) != rendered(tokenizer, with_tools)


def _more(row: Row, pictures: PictureProcessor) -> int:
    """Return the tokens that its pictures take beyond one placeholder each."""
    where = f"task {row.task}, {row.split} row {row.index}"
    places = sum(message["content"].count(IMAGE) for message in row.prompt)
    if row.images and places != len(row.images):
        raise UserError(
            f"{where}: its pictures do not fit its prompt (pictures: {len(row.images)}, `{IMAGE}` in the prompt: {places}): "
            "correct the data."
        )
    try:
        return sum(pictures.count(file) - 1 for file in row.images)
    except UserError as error:
        raise UserError(f"{where}: {error}.") from None


def drop_long_prompts(sieve: Sieve, longest: int | None) -> None:
    """Drop problems whose prompt has more than `longest` tokens; None: keep all."""

    def fault(row: Row) -> str | None:
        if longest is None or row.prompt_tokens <= longest:
            return None
        return f"{row.prompt_tokens} tokens"

    for split in sieve.splits:
        sieve.drop(split, LONG, fault)


def require_short_prompts(rows: Sequence[Row], longest: int) -> None:
    """Raise UserError if a prompt has more than `longest` tokens, which training would refuse."""
    long = [row for row in rows if row.prompt_tokens > longest]
    if long:
        worst = max(long, key=lambda row: row.prompt_tokens)
        smaller = ", or lower model.max_pixels so that its pictures take fewer" if worst.images else ""
        raise UserError(
            f"task {worst.task}: {len(long):,} of {len(rows):,} train prompts have more than {longest} tokens, which is "
            f"training.max_prompt_tokens; the longest, row {worst.index}, has {worst.prompt_tokens}: raise it, or set "
            f"data.max_prompt_tokens to {longest} to leave such rows out{smaller}."
        )


def prompt_tokens(
    splits: Mapping[str, Sequence[Row]], *, tools_shown: bool | None, images_counted: bool
) -> PromptTokens:
    """Return the lengths of the prompts of each split."""
    return PromptTokens(
        images_counted=images_counted,
        tools_shown=tools_shown,
        splits={split: _lengths(sorted(e.prompt_tokens for e in rows)) for split, rows in splits.items()},
    )


def _lengths(ordered: Sequence[int]) -> Lengths | None:
    if not ordered:
        return None
    return Lengths(min=ordered[0], median=_at(ordered, 50), percent_95=_at(ordered, 95), max=ordered[-1])


def _at(ordered: Sequence[int], percent: int) -> int:
    """Return a percentile by nearest rank, which is the length of some prompt."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def require_tools_shown(rows: Iterable[Row], model: Path, chat: str) -> None:
    """Check that the policy learns of its tools: from the model's chat template, or from demonstrations.

    rows: the rows of one task. chat: rollout.chat.name. Raises UserError, which names the task and the tool.
    """
    with_tools = [row for row in rows if row.tools]
    if chat != TEMPLATE or not with_tools or any(row.demonstration for row in with_tools) or _is_fresh(model):
        return
    ours = "".join(f"set model.chat_template to {name}, " for name in fitting_templates(model)[:1])
    raise UserError(
        f"{with_tools[0].task} offers the tool {with_tools[0].tools[0]}, but the chat template of the model in {model} does not describe "
        f"tools, so that the policy would never learn of it: {ours}choose a model whose template describes tools, or "
        "set rollout.chat to {name: renderers} with the model's family."
    )


def _is_fresh(model: Path) -> bool:
    origin = model / "origin.json"
    return origin.is_file() and read_object(origin).get("source") == "fresh"
