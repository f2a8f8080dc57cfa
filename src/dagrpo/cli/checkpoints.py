"""Commands `dagrpo convert`, `dagrpo inspect` and `dagrpo diff`, on checkpoints."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shared import complete_formats
from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible

if TYPE_CHECKING:
    from dagrpo.checkpoints.source import Source

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="a checkpoint in any format")]
_SHORT_NAMES = {"hf": "huggingface"}


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="a checkpoint in any format, or RUN@40: the policy of a kept step"),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="folder to write; an existing checkpoint is replaced")
    ],
    to: Annotated[
        str,
        typer.Option(help="format to write: hf, dcp, or one of an installed package", autocompletion=complete_formats),
    ],
    base: Annotated[Path | None, typer.Option(help="model that training started from: config, tokenizer, rows")] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="LoRA adapter in PEFT's format to merge into the weights")
    ] = None,
    keep_adapter: Annotated[bool, typer.Option(help="keep the adapter separate, in DST/adapter")] = False,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="option of the format")] = None,
    max_shard_bytes: Annotated[
        int, typer.Option(min=1 << 20, help="largest number of bytes of weights in one file")
    ] = 1_000_000_000,
) -> None:
    """Write a checkpoint in another format: the same names, types and bytes of all tensors, or an error."""
    from dagrpo.api.policy import opened_source
    from dagrpo.checkpoints.compare import summary_lines
    from dagrpo.checkpoints.convert import write_as
    from dagrpo.checkpoints.folder import require_replaceable
    from dagrpo.checkpoints.formats import require_format_name
    from dagrpo.checkpoints.source import open_checkpoint
    from dagrpo.utils import console

    format = require_format_name(_SHORT_NAMES.get(to, to), "--to")
    with opened_source(source) as folder:
        require_replaceable(destination, [each for each in (folder, base, adapter) if each is not None])
        opened = _with_adapter(open_checkpoint(folder, base), adapter, keep=keep_adapter)
        manifest = write_as(format, opened, destination, max_shard_bytes, _options(option or []))
    console.summary(f"convert: {source} to {manifest.format}", summary_lines(destination, manifest))


def _with_adapter(opened: "Source", adapter: Path | None, *, keep: bool) -> "Source":
    from dagrpo.checkpoints import lora

    if adapter is None and keep:
        raise UserError("--keep-adapter is given without --adapter: name the adapter's folder.")
    if adapter is None:
        return opened
    return lora.with_adapter_beside(opened, adapter) if keep else lora.merged(opened, adapter)


def _options(options: list[str]) -> dict[str, str]:
    for text in options:
        if "=" not in text:
            raise UserError(f"--option {text} has no value: write NAME=VALUE.")
    return dict(text.split("=", 1) for text in options)


def inspect(folder: Folder) -> None:
    """Show the format, size and digest of a checkpoint, and name, type and shape of every tensor."""
    from dagrpo.checkpoints.compare import described

    _print_lines(described(folder))


def diff(first: Folder, second: Folder) -> None:
    """Compare two checkpoints tensor by tensor, in any formats; exit code 1 if they differ."""
    from dagrpo.checkpoints.compare import compare

    comparison = compare(first, second)
    _print_lines(comparison.lines())
    if comparison.differences:
        raise typer.Exit(1)


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines with names from a foreign file, escaped so that none can control the terminal or begin a line."""
    for line in lines:
        typer.echo(visible(line).replace("\n", r"\u000a"))
