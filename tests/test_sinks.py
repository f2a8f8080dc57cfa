"""Whatever a model, a file's name or a library says, neither terminal nor log gets a character that controls or hides."""

import logging
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from dagrpo.cli import application
from dagrpo.core.escape import HIDDEN
from dagrpo.core.redaction import RedactingFormatter
from dagrpo.utils import console
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import read_json

HOSTILE = "a\x1b[2J\x1b]8;;https://evil.example\x1b\\b\x9b31m\u202ec\u2066\u200b\ud800"
ESCAPED = r"\u001b[2J\u001b]8;;https://evil.example\u001b\b\u009b31m\u202ec\u2066\u200b\ud800"


def _assert_harmless(text: str) -> None:
    assert r"\u001b[2J" in text
    assert r"\u202e" in text
    assert not {unicodedata.category(character) for character in text if character not in "\n\t"} & HIDDEN


def _bar(text: str = HOSTILE) -> None:
    with console.progress(text, 1) as bar:
        bar.advance(1, text)


def _wait(text: str) -> None:
    with console.waiting(text) as tell:
        tell(text)


SAYS: dict[str, Callable[[], object]] = {
    "a sentence": lambda: console.say(HOSTILE),
    "a summary": lambda: console.summary(HOSTILE, [(HOSTILE, HOSTILE)]),
    "progress": _bar,
    "a command": lambda: console.plain_console().print(Text(HOSTILE), HOSTILE),
}


@pytest.mark.parametrize("say", SAYS.values(), ids=SAYS)
def test_what_is_said_on_the_terminal_is_escaped(
    say: Callable[[], object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    say()
    said = capsys.readouterr()
    _assert_harmless(said.out + said.err)


def test_colours_of_our_own_reach_a_terminal_and_none_of_a_texts(capsys: pytest.CaptureFixture[str]) -> None:
    coloured = console.VisibleConsole(force_terminal=True, color_system="standard", width=1000)
    coloured.print(Text(HOSTILE, style="red"))
    assert capsys.readouterr().out == f"\x1b[31ma{ESCAPED}\x1b[0m\n"


MARKUP = "[/b] [link=https://evil.example]x[/link] :key:"


@pytest.mark.parametrize("on_a_terminal", [False, True])
@pytest.mark.parametrize(
    "say",
    [
        lambda: console.say(MARKUP),
        lambda: console.summary(MARKUP, [(MARKUP, MARKUP)]),
        lambda: _bar(MARKUP),
        lambda: _wait(MARKUP),
    ],
    ids=["a sentence", "a summary", "progress", "waiting"],
)
def test_brackets_and_colons_are_printed_as_they_are(
    say: Callable[[], object], on_a_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of others is no markup of rich's: a link would be hidden, a closing tag without an opening one an error."""
    monkeypatch.setattr(console._console, "_width", 1000)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console._console, "_force_terminal", on_a_terminal)
    say()
    printed = re.sub(
        r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err
    )  # without the colours of numbers and addresses
    assert MARKUP in printed


def test_a_mistake_with_the_name_of_a_file_is_printed_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = HOSTILE.replace("/", "").replace("\ud800", "")
    monkeypatch.setattr(application, "app", lambda: read_json(tmp_path / name))
    with pytest.raises(SystemExit):
        application.main()
    _assert_harmless(capsys.readouterr().err)
    _assert_harmless(words_of(RuntimeError(name)))


def test_a_line_of_a_log_is_escaped_with_its_traceback() -> None:
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", (HOSTILE,), sys.exc_info())
    line = RedactingFormatter("%(message)s").format(record)
    _assert_harmless(line)
    assert line.count(r"\u001b[2J") == 2


def test_the_traceback_of_a_bug_is_printed_escaped() -> None:
    hide = "from dagrpo.core.redaction import hide_secrets_in_tracebacks as hide; hide()"
    program = f"{hide}; raise RuntimeError(chr(27) + '[2J' + chr(0x202e))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    _assert_harmless(done.stderr)
