"""Statistics of an evaluation's conversations: turns, calls and stop reasons.

Answers are not read. Where every trajectory of our own agents is one turn without a successful call, the result is empty.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dagrpo.core.trajectory import GREEDY
from dagrpo.rollout.table import has_conversations

KINDS = {"greedy": True, "sampled": False}  # whether an attempt of that kind is greedy
MEANS = ("turns", "calls", "called", "excluded")
SHARES = ("call_statuses", "stop_reasons")
Summary = Mapping[str, Mapping[str, Any]]


def conversations(attempts: pa.Table, *, always: bool = False) -> dict[str, dict[str, Any]]:
    """Return each quantity of a rollout or scores table by kind of trajectory, greedy and sampled.

    Return {} without a conversation, unless `always`.

    `turns` and `calls` are means per trajectory, `called` and `excluded` shares of trajectories; `call_statuses` are shares of
    all calls, `stop_reasons` of all trajectories.
    """
    if not (always or has_conversations(attempts)):
        return {}
    rows = attempts.select(["sample_index", "turns", "stop_reason", "calls"]).to_pylist()
    by_kind = {
        kind: chosen
        for kind, is_greedy in KINDS.items()
        if (chosen := [row for row in rows if (row["sample_index"] == GREEDY) == is_greedy])
    }
    described = {kind: _described(chosen) for kind, chosen in by_kind.items()}
    return {name: {kind: each[name] for kind, each in described.items()} for name in (*MEANS, *SHARES)}


def about_conversations(completions: pa.Table, *, always: bool) -> list[tuple[str, str]]:
    """Return lines for a person on what was sampled; [] without a conversation, unless `always`."""
    return rows_to_show(conversations(completions, always=always))


def _described(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    statuses = [call["status"] for row in rows for call in row["calls"]]
    return {
        "turns": sum(row["turns"] for row in rows) / len(rows),
        "calls": len(statuses) / len(rows),
        "called": sum(bool(row["calls"]) for row in rows) / len(rows),
        "excluded": sum(row["stop_reason"] == "excluded" for row in rows) / len(rows),
        "call_statuses": _shares(statuses),
        "stop_reasons": _shares(row["stop_reason"] for row in rows),
    }


def _shares(values: Iterable[str]) -> dict[str, float]:
    counts = Counter(values)
    return {
        name: count / counts.total() for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    }


def metrics_to_log(summary: Summary) -> dict[str, float]:
    """Return the summary's numbers under flat names such as turns_greedy, calls_sampled, call_ok_greedy, stop_answered_sampled."""
    flat = {f"{name}_{kind}": value for name in MEANS for kind, value in summary.get(name, {}).items()}
    for name, prefix in zip(SHARES, ("call", "stop"), strict=True):
        for kind, shares in summary.get(name, {}).items():
            flat |= {f"{prefix}_{each}_{kind}": share for each, share in shares.items()}
    return flat


def rows_to_show(summary: Summary) -> list[tuple[str, str]]:
    """Return the summary as lines for a person."""
    labels = ("turns per attempt", "calls per attempt", "attempts with a call", "excluded attempts")
    lines = [
        (f"{label}, {kind}", f"{value:.3f}")
        for name, label in zip(MEANS, labels, strict=True)
        for kind, value in summary.get(name, {}).items()
    ]
    for name, label in zip(SHARES, ("calls", "ends"), strict=True):
        lines += [(f"{label}, {kind}", in_words(shares)) for kind, shares in summary.get(name, {}).items() if shares]
    return lines


def in_words(shares: Mapping[str, float]) -> str:
    """Format shares, such as "ok 90.0%, undecodable 10.0%"."""
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
