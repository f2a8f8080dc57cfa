"""Write the pages of docs that the code determines: parameters.md, scripts.md, and the tables of metrics.md."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dagrpo.config.documents import marker_of, meaning_of, names_of, yaml_value
from dagrpo.config.presets import FOLDER, composed
from dagrpo.config.schema import Params
from dagrpo.config.scripts import DIFFERENCES, REASONS, Script, scripts, sections
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.metrics import METRICS
from dagrpo.core.plugin_sections import Choice, Chosen, Several, config_of
from dagrpo.core.section import Section
from dagrpo.utils.files import write_text

DOCS = Path(__file__).parents[1]
PARAMETERS_HEAD = ("| key | allowed | default | meaning |", "|---|---|---|---|")
METRICS_HEAD = "| metric | meaning | how to read it | what to do |\n|---|---|---|---|\n"
METRICS_TABLE = re.compile(r"^(## (\w+)/\n(?:(?!\n## ).)*?\n)\| metric \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)
SCRIPTS_HEAD = """# Scripts of verl and Megatron-LM

Generated from `presets/scripts.tsv`, which has one script a line, by `dagrpo generate`. The table holds the settings of every script of
verl's `examples/sglang_multiturn`, `grpo_trainer`, `tuning` and `ascend_extras`, and of Megatron-LM's `examples/rl`, as they resolve when
the script runs. {presets} of {all} are presets, for our own trainer with SGLang and, as the table counts, for others:

{counts}

    dagrpo use verl/qwen2_5_3b_gsm8k_multiturn_4xgpu
    dagrpo plan verl/qwen2_5_3b_gsm8k_multiturn_4xgpu --gpu H100

The column *trains with* names the [backends](backends.md) that take the preset; `ours` is `fsdp`. A backend's preset lies over it:

    dagrpo use verl/qwen3_4b_fsdp verl
    dagrpo use megatron/qwen_2p5_3b megatron_lm

`make nightly` has verl's own code compose and validate each that verl takes. Other presets lie over one as over any experiment. On other
hardware, lay its preset over it and set `runtime.engine.tensor_parallel` to 1. No preset has been run on the GPUs that it names; `dagrpo
plan` finds that each fits them. A script's state is a commit: J verl b178a3c (January 2026), P verl 9cd3542 (April 2026, after which
`sglang_multiturn` and the older scripts were removed), M verl 1dda039 (August 2026), A Megatron-LM d98e8a6 (August 2026).

## What is equal, and what differs in all of them

Equal, unless a row's column *differs* says otherwise: the model, the data set, prompts per step and per update, samples per prompt,
learning rate, warm-up, weight decay, clipping, aggregation, coefficient of the KL divergence (k3, in the loss), lengths, temperature,
steps (epochs of the rows, without the rest of an epoch), the advantage, and no correction for the engine's logprobs unless the script has
one. The differences:

- **Prompts** are those of our [tasks](tasks.md), not verl's wording, and so is the [grammar of answers](rewards.md). Prices are the
  script's: 1 and 0, for DAPO 1 and -1, for Geometry3K 0.9 and 0.1 for the form.
- **Rows**: tasks drop copies and problems that a test set shares; verl's DAPO-Math file has each row 100 times, and an epoch here is of
  the 17,917 that differ.
- **Validation**: verl completes the whole test split greedily every few steps. Here 64 problems are completed
  (`training.evaluate_every`), and the test split before and after training, greedily and with samples.
- **Tools** that tell whether an answer is right (`answer_check`), and the user who does, are oracles: training has them as in the
  script, and the score is that of the plain task. verl runs the tool only if the data set's preparation names the tool agent.
- **Turns**: verl's `max_response_length` counts tool results, which `rollout.max_new_tokens` does not: `rollout.agent.max_tokens` is the
  script's prompt and response together. A short prompt leaves more room than in verl. verl runs one call of a turn, we run all.
- **Speed and place**: passes are of the script's tokens, at most 16,384; offload, recomputation and the layout of processes are those of
  the hardware preset. A server has as many GPUs as in the script, up to those of the machine, and one for pictures. States are saved
  every 20 steps where a script saves none.
- **NPUs**: a script for Ascend's NPUs is a preset for GPUs.
- **LoRA**: the engine gets merged weights; where a model takes pictures, its vision tower is frozen.
- **Megatron-LM** has one budget for prompt and completion, divides by the population's standard deviation, and ends after 48,828,125
  samples; the steps are the task's where the script's text names none.

"""
SCRIPTS_COLUMNS = (
    "| preset | trains with | script, state | model | data | GPUs | here | prompts | samples | rate | KL | tokens | steps "
    "| beside the columns | differs | published score |"
)
COUNTS = "| folder, state | scripts | {backends} | on paper alone |"
OTHERS = "| script, state | model | data | GPUs | trainer, engine |"


def scripts_page(folder: Path) -> str:
    """Return the page of the table in the folder of presets."""
    every = [*scripts(folder).values()]
    backends = {each: ["ours", *trains_with(each.preset, folder)] if each.use else [] for each in every}
    return "\n".join(_lines(backends, [each for each in every if not each.use]))


def trains_with(preset: str, folder: Path) -> list[str]:
    """List the backends, by the names of their presets, whose preset can lie over a script's."""
    return [path.stem for path in sorted((folder / "backends").glob("*.yaml")) if _fits([preset, path.stem], folder)]


def _fits(names: list[str], folder: Path) -> bool:
    try:
        composed(names, folder)
    except UserError:
        return False
    return True


def _lines(backends: dict[Script, list[str]], others: list[Script]) -> Iterator[str]:
    presets = {script: names for script, names in backends.items() if names}
    counts = "\n".join(_counts(backends))
    yield SCRIPTS_HEAD.format(presets=len(presets), all=len(backends), counts=counts) + "## Presets\n"
    yield from _table(SCRIPTS_COLUMNS, (_preset(*each) for each in presets.items()))
    yield "\n## Scripts that are no presets\n"
    yield "They are here on paper alone: whether such a script runs with verl or Megatron-LM was not tried.\n"
    for reason, text in sorted(REASONS.items()):
        if of_reason := [each for each in others if each.reason == reason]:
            yield f"### {text[0].upper()}{text[1:]}\n"
            yield from _table(OTHERS, map(_other, of_reason))
            yield ""


def _counts(backends: dict[Script, list[str]]) -> Iterator[str]:
    """Yield a table with the number of scripts of each folder and state, by the backends that take them."""
    names = sorted({name for each in backends.values() for name in each}, key=lambda name: (name != "ours", name))
    folders = Counter((script.source.split("/")[0], script.state) for script in backends)
    taken = Counter(
        (script.source.split("/")[0], script.state, name) for script, each in backends.items() for name in each
    )
    rows = (
        [
            f"`{folder}`, {state}",
            str(count),
            *(str(taken[folder, state, name]) for name in names),
            str(count - taken[folder, state, "ours"]),
        ]
        for (folder, state), count in sorted(folders.items())
    )
    yield from _table(COUNTS.format(backends=" | ".join(names)), rows)


def _table(header: str, rows: Iterator[list[str]]) -> Iterator[str]:
    yield header
    yield "|---" * (header.count("|") - 1) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _preset(script: Script, backends: list[str]) -> list[str]:
    values = sections(script)
    steps = values["training"].get("steps")
    return [
        f"`{script.preset}`",
        ", ".join(backends),
        f"`{script.source}`, {script.state}",
        script.model,
        script.data,
        script.gpus,
        script.use.split()[-1],
        "/".join(script.batch.split("/")[:2]),
        script.n,
        script.lr,
        script.kl,
        script.length,
        "the task's" if steps is None else f"{steps:,}",
        script.special,
        "; ".join(_differences(script)),
        script.score,
    ]


def _other(script: Script) -> list[str]:
    return [
        f"`{script.source}`, {script.state}",
        script.model,
        script.data,
        script.gpus,
        f"{script.training}, {script.engine}",
    ]


def _differences(script: Script) -> Iterator[str]:
    """Yield what this script has and the preset has not, beside what differs in all."""
    engine = script.engine.split()[0]
    if engine != "sglang":
        yield f"SGLang for {engine}"
    if not re.match(r"fsdp\b", script.training):
        yield f"FSDP for {re.sub(r' off:.*', '', script.training)}"
    if "npu" in script.preset or "ascend" in script.preset:
        yield "GPUs for NPUs"
    yield from (DIFFERENCES[each] for each in script.specials if each in DIFFERENCES)


def _allowed(property_schema: dict[str, Any]) -> str:
    for alternatives in ("anyOf", "oneOf"):  # one may be among the other
        if options := property_schema.get(alternatives):
            return " or ".join(map(_allowed, options))
    return _one_allowed(property_schema)


def _one_allowed(option: dict[str, Any]) -> str:
    if "enum" in option:
        return ", ".join(f"`{value}`" for value in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    if option.get("type") == "array":
        return f"list of {_allowed(option['items'])}"
    for named in option.get("patternProperties", {}).values():
        return f"{_allowed(named)} by name"
    names = {
        "exclusiveMinimum": "> ",
        "minimum": ">= ",
        "exclusiveMaximum": "< ",
        "maximum": "<= ",
        "pattern": "matching ",
    }
    bounds = [
        f"{sign}{option[key]:,}" if key != "pattern" else f"{sign}`{option[key]}`"
        for key, sign in names.items()
        if key in option
    ]
    return " ".join([option.get("type", "any"), ", ".join(bounds)]).strip().replace("|", "\\|")  # in a cell of a table


def _rows(section: Section, schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        key, value, property_schema = prefix + name, getattr(section, name), schema["properties"][name]
        marker = marker_of(field)
        if isinstance(marker, Chosen):
            yield f"| `{key}.name` | {names_of(marker, '`')} | `{value.name}` | {_description(field)} Its keys: below. |"
        elif isinstance(marker, Several):
            names = ", ".join(f"`{each}`" for each in value) or "none"
            yield f"| `{key}` | parameters by name: {names_of(marker, '`')} | {names} | {_description(field)} Their keys: below. |"
        elif isinstance(value, Section):
            yield from _rows(value, _definition(property_schema, definitions), definitions, f"{key}.")
        else:
            yield _row(key, property_schema, value, field)


def _row(key: str, property_schema: dict[str, Any], value: Any, field: FieldInfo) -> str:
    default = "to be given" if value is PydanticUndefined else f"`{yaml_value(value)}`"
    return f"| `{key}` | {_allowed(property_schema)} | {default} | {_description(field)} |"


def _description(field: FieldInfo) -> str:
    """Return a description with `<name>` outside backticks escaped: Markdown would take it for HTML, and show nothing."""
    parts = (field.description or "").split("`")
    parts[::2] = [re.sub(r"<(?=[a-z])", r"\\<", part) for part in parts[::2]]
    return "`".join(parts)


def _definition(property_schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference: str = property_schema.get("$ref") or property_schema["allOf"][0]["$ref"]
    return definitions[reference.rsplit("/", 1)[1]]  # type: ignore[no-any-return]


def _variants(section: type[Section], prefix: str) -> Iterator[str]:
    """Yield the Markdown lines of a table for each plug-in that a section may name."""
    for name, field in section.model_fields.items():
        marker = marker_of(field)
        if marker is None:
            continue
        for plugin in marker.plugins.own_names():
            config = config_of(marker.plugins, plugin)
            chosen = isinstance(marker, Chosen)
            key = f"{prefix}{name}" if chosen else f"{prefix}{name}.{plugin}"
            rows = [
                _row(
                    f"{key}.{own}",
                    marker.variant(plugin)["properties"][own],
                    info.get_default(call_default_factory=True),
                    info,
                )
                for own, info in config.model_fields.items()
                if not (chosen and own in Choice.model_fields)  # `name` says which it is; a part's own is a key
            ]
            yield from ["", f"### {key}: {plugin}" if chosen else f"### {key}", "", meaning_of(config)]
            yield from ["", *PARAMETERS_HEAD, *rows] if rows else []


def parameters_page() -> str:
    """Return the page docs/parameters.md: one table per section, and one for each plug-in of the package."""
    schema = Params.model_json_schema()
    parts = [
        "# Parameters",
        "",
        "Generated from the sections of the configuration and the plug-ins by `dagrpo generate`. Unknown keys are refused.",
        "An import path, `module:attribute`, names a plug-in of your own, with its own keys:",
        "[where plug-ins are found](algorithms.md#where-plug-ins-are-found).",
    ]
    defaults = Params()
    for name, field in Params.model_fields.items():
        section = getattr(defaults, name)
        definition = _definition(schema["properties"][name], schema["$defs"])
        parts += ["", f"## {name}", "", f"{field.description}", "", *PARAMETERS_HEAD]
        parts += [*_rows(section, definition, schema["$defs"], f"{name}."), *_variants(type(section), f"{name}.")]
    return "\n".join(parts) + "\n"


def with_tables(page: str) -> str:
    """Return docs/metrics.md with the table below each heading `## <group>/` replaced by the group's definitions.

    Raises UserError if a group has no heading.
    """
    headings = re.findall(r"^## (\w+)/$", page, re.MULTILINE)
    missing = next((each for each in METRICS if each.group not in headings), None)
    if missing is not None:
        near = nearest(missing.group, headings)
        raise UserError(
            f"docs/metrics.md has no heading `## {missing.group}/`, the group of the metric {missing.name}: {near}. "
            "Correct the name, or add the heading."
        )
    return METRICS_TABLE.sub(lambda match: f"{match[1]}{METRICS_HEAD}{_metric_rows(match[2])}", page)


def _metric_rows(group: str) -> str:
    return "".join(
        f"| `{each.name}` | {each.meaning} ({each.facts}) | {each.reading} | {each.remedy} |\n"
        for each in METRICS
        if each.group == group
    )


def main() -> None:
    """Write the three pages."""
    metrics = DOCS / "metrics.md"
    write_text(DOCS / "parameters.md", parameters_page())
    write_text(DOCS / "scripts.md", scripts_page(FOLDER))
    write_text(metrics, with_tables(metrics.read_text()))


if __name__ == "__main__":
    main()
