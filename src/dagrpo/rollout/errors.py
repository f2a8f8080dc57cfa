"""What went wrong with a rollout server, in one sentence."""

import re
from pathlib import Path

TAIL_BYTES = 1 << 16
TAIL_LINES = 40
_PREFIX = re.compile(r"^\[\d{4}-[^\]]*\]\s*|^(INFO|WARNING):\s*")
_REASON = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)(: .*)?$|^ERROR: |\[Errno \d+\]|crashed with exit code")


class ServerError(ValueError):
    """The rollout server cannot be used. The message says why, where its log is, and what to do."""


def last_meaningful_line(log: Path) -> str:
    """The last line among a log's last that names a reason, or else its last line.

    SGLang goes on logging after the reason, and long before it logs exceptions that do no harm.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "no log was written"
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    tail = [line for line in lines if line][-TAIL_LINES:]
    reasons = [line for line in tail if _REASON.search(line)]
    return (reasons or tail or ["the log is empty"])[-1]
