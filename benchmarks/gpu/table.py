"""The baseline as tables in Markdown, and their place in docs/benchmarks.md."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import targets

from dagrpo.core.errors import UserError
from dagrpo.utils.files import write_text

BEGIN, END = "<!-- gpu-check: begin -->", "<!-- gpu-check: end -->"
Baseline = Mapping[str, Any]


def markdown(baseline: Baseline) -> str:
    """All of it; parts that were not run say so."""
    return "\n\n".join("\n".join(part) for part in (_machine(baseline), _parts(baseline), *_results(baseline)) if part)


def put_into(document: Path, text: str) -> None:
    """Replace what stands between the two marks. UserError: they are not there."""
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{document} has no place for the table: put the lines {BEGIN} and {END} where it is to stand.")
    write_text(document, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _machine(baseline: Baseline) -> list[str]:
    machine, versions = baseline["machine"], baseline["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [
        f"{machine['device']}, driver {machine['driver']}; {named}; commit {baseline['commit']}, {baseline['date']}."
    ]


def _parts(baseline: Baseline) -> list[str]:
    rows = ["| part | minutes | of at most | how it ended |", "|---|---|---|---|"]
    for name, part in baseline["parts"].items():
        rows.append(
            f"| {name} | {part['seconds'] / 60:.1f} | {part['budget_seconds'] / 60:.1f} | {_cell(part['status'])} |"
        )
    total = sum(part["seconds"] for part in baseline["parts"].values())
    return [*rows, f"| all | {total / 60:.1f} | {baseline['budget_seconds'] / 60:.1f} | |"]


def _results(baseline: Baseline) -> Iterator[list[str]]:
    if baseline.get("shapes"):
        yield list(_shapes(baseline["shapes"]))
    if baseline.get("several"):
        yield list(_several(baseline["several"]))
    yield list(targets.rows(baseline))
    experiment = baseline.get("experiment")
    if experiment:
        yield list(_scores(experiment))
        if experiment["steps"]:
            yield list(_steps(experiment["steps"]))


def _shapes(shapes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| Qwen3-0.6B, bfloat16 | tokens/s | MFU (of 989 TFLOP/s) | peak GiB, allocated (reserved) | prime-rl: tokens/s, GiB | ratio |"
    yield "|---|---|---|---|---|---|"
    for case in shapes.values():
        words = case.get("error") or case.get("left_out")
        if words:
            yield f"| {case['title']} | {_cell(words)} | | | | |"
            continue
        peer, ratio = "", ""
        if case["peer_tokens_per_second"]:
            peer = f"{case['peer_tokens_per_second']:,}, {case['peer_gibibytes']:.1f}"
            ratio = f"{case['tokens_per_second'] / case['peer_tokens_per_second']:.2f}"
        memory = "" if case["gibibytes_allocated"] is None else _memory(case)
        yield f"| {case['title']} | {case['tokens_per_second']:,.0f} | {case['mfu']:.1%} | {memory} | {peer} | {ratio} |"


def _several(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| several GPUs together | |"
    yield "|---|---|"
    for name, value in found.items():
        if name == "all_reduce_bytes_per_second":
            yield f"| all-reduce, GB/s of each link | {value / 1e9:.1f} |"
        else:
            yield f"| {name.replace('_', ' ')} | {_cell(str(value))} |"


def _memory(case: Mapping[str, Any]) -> str:
    return f"{case['gibibytes_allocated']:.1f} ({case['gibibytes_reserved']:.1f})"


def _scores(experiment: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {experiment['experiment']} | seed | metric | base | trained |"
    yield "|---|---|---|---|---|"
    for score in experiment["scores"]:
        base, trained = (_interval(score[policy]) for policy in ("base", "trained"))
        yield f"| {score['task']} | {score['seed']} | {score['metric']} | {base} | {trained} |"
    for task, numbers in experiment["over_seeds"].items():
        if isinstance(numbers, Mapping):
            gain = f"{numbers['trained']:.1%}, {numbers['difference']:+.3f} ({numbers['interval']})"
            yield f"| {task} | all | greedy | {numbers['base']:.1%} | {gain} |"


def _interval(estimate: tuple[float, float, float]) -> str:
    value, low, high = estimate
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _steps(steps: Mapping[str, float]) -> Iterator[str]:
    yield "| of a step, median | |"
    yield "|---|---|"
    for name, value in steps.items():
        if name.endswith("_mfu"):
            yield f"| {name} | {value:.1%} |"
        elif name.endswith("_seconds"):
            yield f"| {name} | {value:.3f} |"
        else:
            yield f"| {name} | {value:,.0f} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
