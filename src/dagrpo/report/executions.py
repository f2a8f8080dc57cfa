"""Facts about the stages' executions: the experiment overall, and each execution."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dagrpo.report.format import EN_DASH
from dagrpo.utils.run_info import Account

MEBIBYTE = 1 << 20
VERSIONS = ("dagrpo", "python", "torch", "sglang", "transformers", "pyarrow")


def circumstances(accounts: Mapping[Path, Account]) -> list[tuple[str, str]]:
    """Return dates, commit, software and hardware of all executions; unknown facts are left out."""
    if not accounts:
        return []
    known = list(accounts.values())
    days = sorted({each.started[:10] for each in known})
    facts = {
        "Date": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        "Commit": _values(known, _commit),
        "Software": ", ".join(f"{name} {version}" for name in VERSIONS if (version := _fact(known, f"version.{name}"))),
        "Lock": _fact(known, "environment.lock"),
        "Processor": _fact(known, "hardware.processor"),
        "Cores": _fact(known, "hardware.cores"),
        "Memory": _fact(known, "hardware.memory"),
        "GPU": _fact(known, "hardware.gpu") or "none",
        "Time of all stages": duration(sum(each.seconds for each in known)),
    }
    return [(name, value) for name, value in facts.items() if value]


def _commit(account: Account) -> str:
    commit = account.facts.get("git.commit", "")
    is_dirty = account.facts.get("git.dirty") == "true"
    return f"{commit} with uncommitted changes" if commit and is_dirty else commit


def _fact(accounts: list[Account], name: str) -> str:
    return _values(accounts, lambda account: str(account.facts.get(name, "")))


def _values(accounts: list[Account], of: Callable[[Account], str]) -> str:
    return ", ".join(sorted({value for account in accounts if (value := of(account))}))


def executions(accounts: Mapping[Path, Account]) -> list[tuple[str, ...]]:
    """Return a row for each execution, in order of their start.

    Stage, seed, folder of the outputs, start, duration, memory of the process, and of its largest child.
    """
    ordered = sorted(accounts.items(), key=lambda each: (each[1].started, str(each[0])))
    return [_execution(provenance, account) for provenance, account in ordered]


def _execution(provenance: Path, account: Account) -> tuple[str, ...]:
    taken = "cache hit, " if account.is_taken_over else ""
    again = f", attempt {account.attempt}" if account.attempt > 1 else ""
    return (
        account.stage,
        "" if account.seed is None else str(account.seed),
        "/".join(provenance.parts[-3:-1]),
        account.started[:19].replace("T", " "),
        f"{taken}{duration(account.seconds)}{again}",
        _mebibytes(account.memory),
        _mebibytes(account.memory_of_children),
    )


def _mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:,.0f} MiB" if size else EN_DASH


def duration(seconds: float) -> str:
    """Format a duration: 5025.0 -> 1 h 23 min 45 s; under ten seconds with a decimal."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return " ".join(
        [*([f"{hours} h"] if hours else []), *([f"{minutes} min"] if hours or minutes else []), f"{rest} s"]
    )
