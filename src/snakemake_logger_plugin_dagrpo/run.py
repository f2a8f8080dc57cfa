"""Jobs of one Snakemake run, from its log records, as readable lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import LogRecord

TARGETS = frozenset({"target", "prepared", "total"})  # in Snakemake's counts, and no stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of a rule."""

    stage: str  # the rule
    title: str  # as the rule's message has it: `train: seed 0`
    log: str | None  # None: a target, which does nothing
    started: float  # seconds since 1970

    @property
    def name(self) -> str:
        """The title as the subject of a sentence: `train, seed 0`."""
        return self.title.replace(": ", ", ", 1)


class Run:
    """The jobs that have started, ended and failed so far."""

    def __init__(self) -> None:
        self.running: dict[int, Job] = {}
        self.failed: list[Job] = []
        self.total = 0  # stages
        self.done = 0

    def plan(self, stats: Mapping[str, int]) -> str:
        """Record how many jobs each rule has; return a line about it."""
        stages = {name: count for name, count in stats.items() if name not in TARGETS}
        self.total = sum(stages.values())
        named = ", ".join(name if count == 1 else f"{count} {name}" for name, count in stages.items())
        return f"{self.total} stage{'' if self.total == 1 else 's'} to run: {named}"

    def start(self, record: LogRecord) -> str:
        """Record a job's start; return a line about it."""
        fields = record.__dict__
        title = fields.get("rule_msg") or " ".join([fields["rule_name"], *map(str, fields["wildcards"].values())])
        log = fields["log"][0] if fields.get("log") else None
        others = [job for job in self.failed if job.log != log]
        is_again = len(others) < len(self.failed)  # by --retries
        self.failed = others
        self.running[fields["jobid"]] = Job(stage=fields["rule_name"], title=title, log=log, started=record.created)
        return f"{title}, again" if is_again else str(title)

    def finish(self, record: LogRecord) -> str | None:
        """Record a job's end; return a line about it, None for a target."""
        job = self.running.pop(record.__dict__["job_id"], None)
        if job is None or job.log is None:
            return None
        self.done += 1
        counted = f", {self.done} of {self.total} stages" if self.total > 1 else ""
        return f"{job.title}: done in {duration(record.created - job.started)}{counted}"

    def fail(self, record: LogRecord) -> str | None:
        """Record a failure; if other jobs still run, return a line about those that are awaited."""
        job = self.running.pop(record.__dict__["jobid"], None)
        if job is None:
            return None
        self.failed.append(job)
        if not self.running:
            return None
        others = "; ".join(other.title for other in self.running.values())
        return f"{job.title}: failed after {duration(record.created - job.started)}. Still running: {others}"


def duration(seconds: float) -> str:
    """Format a duration: `7 s`, `2 min 5 s`, `3 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
