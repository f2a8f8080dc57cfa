"""The worker process of rendering.py: renders chat templates, one JSON line in, one JSON line out.

    python -P -m dagrpo.chat_templates.worker MEMORY_BYTES CPU_SECONDS LONGEST_TEXT

`{"template": "...", "variables": {...}}` -> `{"text": "..."}` or `{"refusal": "..."}`; a template of null is the one before. Bounded are
its address space, the processor time of each line (the kernel ends it then, also when its parent is gone), and what it
answers. It ends when its input does. Not here: restarting, and what a lost worker means.
"""

import json
import os
import re
import resource
import signal
import sys
from typing import Any

from jinja2 import Template

from dagrpo.chat_templates.environment import chat_environment

DEEPEST_RECURSION = 1_000
LONGEST_REFUSAL = 400  # characters
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def main() -> None:
    """Answer lines until there are no more."""
    memory, seconds, longest = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    sys.setrecursionlimit(DEEPEST_RECURSION)
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    templates = _Templates()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = _reply(templates, line, longest)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


class _Templates:
    """The template that was sent last, compiled."""

    def __init__(self) -> None:
        self._environment = chat_environment()
        self._last: Template | None = None

    def compiled(self, source: str | None) -> Template:
        if source is not None:
            self._last = self._environment.from_string(source)
        assert self._last is not None, "the first line has a template"
        return self._last


def _reply(templates: _Templates, line: str, longest: int) -> dict[str, Any]:
    try:
        request = json.loads(line)
        text = templates.compiled(request["template"]).render(request["variables"])
    except MemoryError:
        os._exit(1)  # what is left may not be enough for an answer
    except Exception as error:  # noqa: BLE001  the border to a stranger's program: whatever it raises is the answer
        return {"refusal": (str(error) or type(error).__name__)[:LONGEST_REFUSAL]}
    if len(text) > longest:
        return {"too_long": len(text)}
    if _HALF_A_PAIR.search(text):  # no tokenizer takes it
        return {"refusal": "it writes half of a surrogate pair, which is not text"}
    return {"text": text}


if __name__ == "__main__":
    main()
