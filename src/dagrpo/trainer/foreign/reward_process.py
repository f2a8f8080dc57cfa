"""Pipe to the process that grades, for the Python of another trainer.

Only the standard library is there: the files of that environment read this one by its path, `runpy.run_path`.
"""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any


class RewardProcess:
    """Process of dagrpo that grades responses, started by the first question. Several threads may ask."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return its reply to one line of JSON. Raises RuntimeError with its reason if it cannot grade."""
        line = json.dumps(question)
        with self._lock:
            if self._process is None:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            reply: dict[str, Any] = json.loads(
                self._process.stdout.readline() or '{"error": "the process that grades has ended"}'
            )
        if "error" in reply:
            raise RuntimeError(f"dagrpo cannot grade: {reply['error']}")
        return reply
