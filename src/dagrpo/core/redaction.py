"""Redaction of secrets before anything is printed or stored.

Passwords in addresses, and keys and tokens in the environment. A safety net below the code that leaves out secrets itself; it
recognises them by their form or their variable's name. `dagrpo.utils.child_variables` makes the environment of other people's
programs. Imported by SGLang's processes too, by name, for their log: it needs nothing but the standard library.
"""

import atexit
import io
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TextIO

HIDDEN = "***"
SHORTEST_SECRET = 6  # a shorter one is a number or a word, which occurs everywhere
# Ends of words; such as in PGPASSWORD and OPENAI_APIKEY. TOKENIZERS_PARALLELISM has none of them.
_SECRET_WORD = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIAL|CRED|AUTH|COOKIE)S?(?![A-Z])|(?<![A-Z])(PAT|DSN)(?![A-Z])"
    r"|(?<=[A-Z]_)PWD$|CONNECTION_?STRING"
)
_WITH_PASSWORD = re.compile(r"://[^/\s]+@|://[^\s@]*:\S*@|(?<![a-z])(password|pwd|accountkey)\s*=", re.IGNORECASE)
_PARAMETER = r"[?&][^\s=&?]{0,64}(?:password|passwd|pwd|token|secret|key)[^\s=&]{0,64}="  # of an address, and secret
# What stands for the secret is the group `secret`. Each reads a text in time proportional to its length.
_FORMS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        r"://[^\s/?#@:]{0,256}:(?P<secret>[^\s/?#]{0,4096})@",  # a password
        r"https?://(?P<secret>[^\s/?#@:]{1,4096})@",  # a name without a password may be a token
        _PARAMETER + r"(?P<secret>[^\s&#'\"]{1,4096})",
        r"authorization['\"]?\s?[:=]\s?['\"]?(?:basic|bearer)\s(?P<secret>[^\s'\",]{1,4096})",
        r"(?<![a-z&?])(?:password|pwd|accountkey)=(?P<secret>[^\s;&'\"]{1,4096})",
    )
]
_OF_AN_ADDRESS_ALONE = re.compile(_PARAMETER + r"(?P<secret>[^&#]+)", re.IGNORECASE)  # in no quotes
# In the value of one variable, where a password may have any character.
_ANY_PASSWORD = re.compile(
    r"://[^\s@:]*:(\S+)@|://([^\s@/]+)@|(?:password|pwd|accountkey)\s*=\s*([^;\s]+)", re.IGNORECASE
)


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable looks like a secret."""
    return _has_secret_name(name) or _WITH_PASSWORD.search(value) is not None


def without_passwords(text: str) -> str:
    """Replace passwords in a text's addresses by `***`, independently of the environment."""
    if ":" in text or "=" in text:  # both absent: no password, as in most long texts
        for form in _FORMS:
            text = form.sub(_hide, text)
    return text


def secret_parameters(address: str) -> list[str]:
    """List the values of an address's parameters that look like secrets, as they are written."""
    return [match["secret"] for match in _OF_AN_ADDRESS_ALONE.finditer(address)]


def without_secret_parameters(address: str) -> str:
    """Replace secret values of an address's parameters by `***`; the rest of it is not checked."""
    return _OF_AN_ADDRESS_ALONE.sub(_hide, address)


def redacted(text: str, secrets: Sequence[str] = ()) -> str:
    """Redact as `without_passwords` does, also `secrets` and the values of variables that look like secrets."""
    for secret in sorted({*secrets, *_secrets_of_environment()}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return without_passwords(text)


class RedactingFormatter(logging.Formatter):
    """A formatter of log lines and tracebacks without secrets and control characters; `secrets`: some that are in no variable."""

    def __init__(self, *arguments: Any, secrets: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return _fit_to_show(super().format(record), self._secrets)


def hide_secrets_in_tracebacks() -> None:
    """Make Python redact tracebacks of uncaught exceptions, in this process and its threads."""
    sys.excepthook = _print_traceback
    threading.excepthook = _print_traceback_of_thread


def hide_secrets_in_streams() -> None:
    """Redact all that Python code prints in this process from now on, including libraries, and escape control characters."""
    sys.stdout, sys.stderr = RedactingStream(sys.stdout), RedactingStream(sys.stderr)


class RedactingStream(io.TextIOBase):
    """Text stream that collects whole lines before redacting, so that a secret split over writes is caught."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._lock = threading.RLock()  # one thread may interrupt itself with a signal
        atexit.register(self._end)

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._stream.write(f"{_fit_to_show(line)}\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def _end(self) -> None:
        self._stream.write(_fit_to_show(self._line))
        self._stream.flush()


def _has_secret_name(name: str) -> bool:
    return _SECRET_WORD.search(name.upper()) is not None


def _hide(match: re.Match[str]) -> str:
    start, end = (place - match.start() for place in match.span("secret"))
    return match[0][:start] + HIDDEN + match[0][end:]


def _secrets_of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        yield from (secret for secret in _secrets_of(name, value) if len(secret) >= SHORTEST_SECRET)


def _secrets_of(name: str, value: str) -> Iterator[str]:
    """Yield the substrings to redact: an address's password; for a key of several lines, every line too."""
    inside = [part for match in _ANY_PASSWORD.finditer(value) for part in match.groups() if part]
    if inside:
        yield from inside
    elif _has_secret_name(name) and not os.path.exists(value):  # the path of a file with a secret is not a secret
        yield value
        yield from value.splitlines()


def _fit_to_show(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a text for a log or a terminal: without secrets, and with its characters without a glyph escaped."""
    from dagrpo.core.escape import visible  # which imports this module

    return visible(redacted(text, secrets))


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(_fit_to_show("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr, flush=True)


def _print_traceback_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    print(f"Exception in thread {failed.thread.name if failed.thread else '?'}:", file=sys.stderr)
    _print_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)
