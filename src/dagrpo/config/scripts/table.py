"""The table of verl's and Megatron-LM's scripts: presets/scripts.tsv."""

import re
from dataclasses import dataclass, fields
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief

TABLE = "scripts.tsv"  # under presets/: one script a line
# Why a script is no preset: the words of the column `reason`.
REASONS = {
    "adapter": "it continues the training of an adapter; training begins with whole weights here",
    "broken": "it sets a switch to a variable, or the number of GPUs, that nothing defines",
    "code": "the model needs its own Python code, which is never run here",
    "family": "the trainer and the engine have not been tried with this family",
    "machines": "weights and optimizer exceed the 8 GPUs of one machine, for which the presets are",
    "mamba": "the model has Mamba layers, which the trainer does not know",
    "one_sample": "one sample per prompt, whose advantage is always 0: nothing is learned",
    "pickle": "the weights are published as a pickle, which is never read here",
    "pictures": "pictures are known for Qwen2.5-VL and Qwen3-VL without experts",
    "union": "it trains on GSM8K and MATH together; one task is trained on here",
    "unpublished": "the weights are not published",
    "video": "its prompts have videos",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A line of the table: what the script sets, and what it is here."""

    place: str  # file and line, for messages
    preset: str
    source: str  # path below examples/
    state: str  # of the repository: J, P, M (verl), A (Megatron-LM)
    model: str
    data: str  # train, or train>test
    gpus: str  # nodes x GPUs
    engine: str
    training: str
    batch: str  # prompts per step / per update / per GPU and pass
    n: str
    lr: str
    kl: str
    length: str  # prompt/response, or both together
    epochs: str  # epochs/save every/test every; no epochs: those of `special`, or the task's steps
    special: str
    use: str  # model, task and hardware here; "": no preset
    reason: str  # key of REASONS
    score: str  # published

    def fault(self, column: str, how: str) -> UserError:
        """Return an error that names the line and the column."""
        return UserError(f"{self.place} ({self.preset}): `{column}` is {brief(getattr(self, column))}: {how}.")

    def match(self, column: str, pattern: str, how: str) -> tuple[str | None, ...]:
        """Return the groups of a column's text. Raises UserError if the pattern does not describe all of it."""
        found = re.fullmatch(pattern, getattr(self, column))
        if found is None:
            raise self.fault(column, f"write {how}")
        return found.groups()

    @property
    def specials(self) -> list[str]:
        """List the settings beside the columns."""
        return [each for each in self.special.split(", ") if each]


COLUMNS = [field.name for field in fields(Script)][1:]


def scripts(folder: Path) -> dict[str, Script]:
    """Return the lines of the table by preset; none without a table. Raises UserError for a line with other columns or a second name."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    header, *lines = path.read_text().splitlines()
    if header.split("\t") != COLUMNS:
        raise UserError(f"{path}, line 1: write the columns {', '.join(COLUMNS)}, with tabs between them.")
    found = dict[str, Script]()
    for number, line in enumerate(lines, 2):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise UserError(
                f"{path}, line {number} has {len(cells)} columns: write {len(COLUMNS)}, with tabs between them."
            )
        script = Script(place=f"{path}, line {number}", **dict(zip(COLUMNS, cells, strict=True)))
        if script.preset in found:
            raise script.fault("preset", "write a name that no other line has")
        if (script.reason not in REASONS) != (script.use != ""):
            raise script.fault("reason", f"write none beside `use`, and else one of {', '.join(REASONS)}")
        found[script.preset] = script
    return found


def presets(folder: Path) -> dict[str, Script]:
    """Return the scripts that are presets, by name."""
    return {name: script for name, script in scripts(folder).items() if script.use}
