"""A chat template rendered by a worker process within limits.

Bounded: the template's own length, the memory and the processor time of a render, the length of the text, and how many
characters of a refusal are told. Compiling is a part of rendering: Jinja computes constants then. Not bounded: how often
somebody renders. Measured with the template of Qwen3 and a short question: 0.33 ms of processor time a render, 0.09 without a
process of its own.
"""

import atexit
import json
import threading
from collections.abc import Mapping
from typing import Any

from dagrpo.chat_templates import worker
from dagrpo.errors import UserError
from dagrpo.line_process import LineProcess
from dagrpo.visible import one_line

LONGEST_TEMPLATE = 1_000_000  # characters; published ones have up to 30,000
LONGEST_TEXT = 20_000_000  # characters: some five million tokens
MEMORY_BYTES = 1 << 30  # address space of the process
CPU_SECONDS = 10.0  # of one render; long conversations take hundredths
CLOCK_SECONDS = 300.0  # for a process that gets no processor
MODULE = worker.__name__  # imported, so that it is part of the code that a stage depends on
_REASON = 200  # characters


class TemplateRefusal(Exception):
    """A template has raised an error of its own over these messages, writes no text, or is no template: why, on one line."""


class Renderer:
    """Renders in one process, started when first needed. May be used by many threads, which wait for each other."""

    def __init__(
        self, *, memory_bytes: int = MEMORY_BYTES, cpu_seconds: float = CPU_SECONDS, longest: int = LONGEST_TEXT
    ) -> None:
        self._limits = f"{memory_bytes >> 20:,} MiB of memory or {cpu_seconds:g} seconds of a processor"
        self._longest = longest
        arguments = [str(memory_bytes), str(cpu_seconds), str(longest)]
        self._process = LineProcess(MODULE, arguments, {"PYTHONHASHSEED": "0"})
        self._sent: str | None = None  # the template that the process has
        self._lock = threading.Lock()

    def render(self, template: Any, variables: Mapping[str, Any], name: str) -> str:
        """The text. `name` is the model's, for sentences.

        TemplateRefusal: the template raises an error, or writes half of a surrogate pair. UserError: it is no text, or goes beyond a limit.
        """
        if not isinstance(template, str) or len(template) > LONGEST_TEMPLATE:
            raise UserError(
                f"the chat template of {name} must be a text of at most {LONGEST_TEMPLATE:,} characters: correct it."
            )
        with self._lock:
            # Once more: a process that was killed from outside is no template's fault.
            reply = self._asked(template, variables) or self._asked(template, variables)
        if reply is None:
            raise UserError(
                f"the chat template of {name} takes more than {self._limits} to render a conversation: use another template."
            )
        if "refusal" in reply:
            raise TemplateRefusal(one_line(reply["refusal"], _REASON))
        if "too_long" in reply:
            raise UserError(
                f"the chat template of {name} makes {reply['too_long']:,} characters of a conversation, and the most are "
                f"{self._longest:,}: use another template."
            )
        text: str = reply["text"]
        return text

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _asked(self, template: str, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """The process's answer; None where it ended or took too long, and is no more."""
        if self._process.start():
            self._sent = None
            if self._process.exchange(b"", CLOCK_SECONDS) is None:
                self._end()
                raise RuntimeError(f"the process {MODULE} did not start: run python -m {MODULE} to see why.")
        known = template == self._sent
        request = {"template": None if known else template, "variables": variables}
        self._sent = None  # until it has answered
        line = self._process.exchange(json.dumps(request, default=dict).encode() + b"\n", CLOCK_SECONDS)
        if line is None:
            self._end()
            return None
        reply: dict[str, Any] = json.loads(line)
        self._sent = template if known or "refusal" not in reply else None
        return reply

    def _end(self) -> None:
        self._sent = None
        self._process.kill()


RENDERER = Renderer()
atexit.register(RENDERER.close)
