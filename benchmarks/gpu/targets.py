"""The speeds and the memory that one H100 is to reach."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Baseline = Mapping[str, Any]
DEVICE = "H100"
TOKENS_PER_SECOND = 25_000  # of the case rl; prime-rl commits 11,900 (benchmarks/results/BENCHMARKS.md, commit 559b447)
GIBIBYTES = 12.5  # of the same case, which is what prime-rl commits
STEP_SECONDS = 30.0  # of 256 prompts x 16 completions of GSM8K
STEP = 'make gpu-check GPU_CHECK="--parts step"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure to reach, beside what was measured."""

    what: str
    wanted: str
    measured: str
    is_met: bool | None  # None: not measured

    def row(self, device: str) -> str:
        """Return the row of the table. The target is of an H100, so that another card neither meets nor misses it."""
        verdict = "" if self.is_met is None else "yes" if self.is_met else "no"
        if verdict and DEVICE not in device:
            verdict = f"of an {DEVICE}"
        return f"| {self.what} | {self.wanted} | {self.measured} | {verdict} |"


def rows(baseline: Baseline) -> Iterator[str]:
    """Yield the table of targets."""
    yield f"| target, on one {DEVICE} | wanted | measured | met |"
    yield "|---|---|---|---|"
    for target in (*_of_update(baseline), _of_step(baseline)):
        yield target.row(baseline["machine"]["device"])


def _of_update(baseline: Baseline) -> Iterator[Target]:
    case = (baseline.get("shapes") or {}).get("rl") or {}
    speed, memory = case.get("tokens_per_second"), case.get("gibibytes_allocated")
    yield Target(
        what="Qwen3-0.6B, RL update of 1 x 16,384, packed (prime-rl: 11,900 tokens/s)",
        wanted=f"above {TOKENS_PER_SECOND:,} tokens/s",
        measured="not measured" if speed is None else f"{speed:,.0f} tokens/s",
        is_met=None if speed is None else speed > TOKENS_PER_SECOND,
    )
    yield Target(
        what="the same (prime-rl: 12.5 GiB)",
        wanted=f"under {GIBIBYTES} GiB",
        measured="not measured" if memory is None else f"{memory:.1f} GiB",
        is_met=None if memory is None else memory < GIBIBYTES,
    )


def _of_step(baseline: Baseline) -> Target:
    seconds = (baseline.get("step") or {}).get("seconds")
    return Target(
        what="Qwen2.5-0.5B, a step of GSM8K, 256 prompts x 16",
        wanted=f"under {STEP_SECONDS:g} s",
        measured=f"not measured: `{STEP}`" if seconds is None else f"{seconds:.1f} s",
        is_met=None if seconds is None else seconds < STEP_SECONDS,
    )
