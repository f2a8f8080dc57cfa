"""Whatever a policy writes, nothing of it acts on a terminal or a page, and nothing hides."""

import io
import logging
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.escape import HIDDEN, INVISIBLE, brief, one_line, sentence, visible
from dagrpo.core.redaction import RedactingFormatter, RedactingStream, redacted, without_passwords


def test_text_that_hides_or_reorders_is_made_visible() -> None:
    assert visible("a\u202eb\x00c\n\td\u200b\ud800") == "a\\u202eb\\u0000c\n\td\\u200b\\ud800"
    assert visible("a\u3164b\u2800c\U000e0101") == "a\\u3164b\\u2800c\\ue0101"
    assert visible("\u2764\ufe0f") == "\u2764\ufe0f", "emoji stay"
    assert visible("\u2764\ufe0f\ufe0e\ufe0f") == "\u2764\ufe0f\\ufe0e\\ufe0f"


def test_one_line_is_one_line() -> None:
    assert one_line("a\n\n  b\tc", 10) == "a b c"
    assert one_line("abcdefghijk", 5) == "abcd\N{HORIZONTAL ELLIPSIS}"
    assert one_line("a" + " " * 100, 5) == "a\N{HORIZONTAL ELLIPSIS}"


@given(st.text(st.characters()), st.integers(1, 40))
def test_no_text_gets_through_with_a_character_that_is_not_seen(text: str, longest: int) -> None:
    for shown in (visible(text), visible(text, longest), one_line(text, longest)):
        assert not {unicodedata.category(character) for character in shown if character not in "\n\t"} & HIDDEN
        assert not any(map(INVISIBLE.search, shown.split("\n")))
    assert "\n" not in one_line(text, longest)
    assert len(one_line(text, longest)) <= longest


@pytest.mark.parametrize("before", [70, 90, 235, 240, 700])
def test_a_secret_that_a_cut_divides_is_redacted_whole(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_X_API_KEY", "sk-" + "SECRET" * 8)
    text = "x" * before + " sk-" + "SECRET" * 8 + " " + "y" * 700
    assert "SECRET" not in one_line(text, before + 20) + sentence(text)


SECRET = "m4rked-s3cret"
PARTS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"no answer from http://alice:{SECRET}@lab:5000/x", "no answer from http://alice:***@lab:5000/x"),
        (f"postgresql://:{SECRET}@lab", "postgresql://:***@lab"),
        (f"https://{SECRET}@lab/me/mine", "https://***@lab/me/mine"),
        (f"('http://alice:{SECRET}@lab', 'http://bob:{SECRET}@lab')", "('http://alice:***@lab', 'http://bob:***@lab')"),
        (f"http://lab?user=a&access_token={SECRET}&x=1", "http://lab?user=a&access_token=***&x=1"),
        (f"{{'Authorization': 'Bearer {SECRET}'}}", "{'Authorization': 'Bearer ***'}"),
        (f"authorization: Basic {SECRET}\nx", "authorization: Basic ***\nx"),
        (f"Server=lab;User=me;Password={SECRET};x", "Server=lab;User=me;Password=***;x"),
        ("ssh://git@lab/x, https://lab/a@b, alice@lab: 3:4", "ssh://git@lab/x, https://lab/a@b, alice@lab: 3:4"),
    ],
)
def test_passwords_in_addresses_and_headers_are_hidden_and_nothing_else(text: str, hidden: str) -> None:
    assert without_passwords(text) == hidden
    assert without_passwords(hidden) == hidden


@given(PARTS, PARTS, PARTS)
def test_no_password_of_an_address_is_left_wherever_it_stands(before: str, user: str, after: str) -> None:
    assert SECRET not in without_passwords(f"{before} http://{user}:{SECRET}@{after}/{before}")


@pytest.mark.parametrize("part", ["://", "?", "&a", "://a:", "authorization: ", "password"])
def test_a_long_text_is_read_in_linear_time(part: str) -> None:
    """In the square of its length it would take hours."""
    without_passwords(part * 300_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", SECRET),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("https_proxy", f"http://me:{SECRET}@proxy:3128"),
        ("DATABASE_URL", f"postgres://me:{SECRET}/x@lab/db"),
        ("STORAGE", f"Server=here;Password={SECRET}"),
        ("LAB_PASSWORD", f"{SECRET}@/+"),
        ("DEPLOY_KEY", f"-----BEGIN-----\n{SECRET}\n-----END-----"),
    ],
)
def test_values_of_variables_that_look_like_secrets_are_hidden(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    for quoted in (value, f"x{value}x", *value.splitlines()):
        assert SECRET not in redacted(quoted)


def test_values_too_short_to_be_secrets_and_files_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAX_TOKENS", "4096")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    assert redacted(f"4096 of {tmp_path}") == f"4096 of {tmp_path}"


def test_a_log_has_no_secret_of_a_message_an_argument_or_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    formatter = RedactingFormatter("%(message)s", secrets=("an0ther",))
    try:
        raise RuntimeError(f"http://a:b{SECRET}@lab an0ther")
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", (SECRET,), sys.exc_info())
    line = formatter.format(record)
    assert SECRET not in line
    assert "an0ther" not in line
    assert "RuntimeError: http://a:***@lab ***" in line


PROGRAM = """
import os, sys, threading
from dagrpo.core.redaction import hide_secrets_in_tracebacks
hide_secrets_in_tracebacks()
def fail():
    try:
        raise ValueError(os.environ["HF_TOKEN"])
    except ValueError:
        raise RuntimeError("http://a:" + os.environ["HF_TOKEN"] + "@lab")
thread = threading.Thread(target=fail, name="beside")
thread.start()
thread.join()
fail()
"""


def test_a_traceback_on_the_screen_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: http://a:***@lab") == 2
    assert "thread beside" in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.parametrize("length", [0, 10, 60, 200])
def test_a_value_that_a_sentence_quotes_is_cut_after_its_password_is_hidden(length: int) -> None:
    assert SECRET not in brief("x" * length + f" http://alice:{SECRET}@lab")
    assert SECRET not in brief(["x" * length + f" http://alice:{SECRET}@lab"])
    assert SECRET not in brief({"x": f"http://alice:{SECRET}@" + "lab" * length})


PRINTS = """
import logging, os, sys, warnings
from dagrpo.core.redaction import hide_secrets_in_streams
hide_secrets_in_streams()
secret = os.environ["LAB_TOKEN"]
logging.basicConfig()
logging.getLogger("mlflow").warning("asked with %s", secret)
warnings.warn(f"http://alice:m4rked@lab:5000 and {secret}")
sys.stderr.write(secret[:7]); sys.stderr.flush(); sys.stderr.write(secret[7:] + chr(10))
sys.stderr.write(chr(27) + "]0;owned" + chr(7) + chr(10))
print("unfinished", chr(27), secret, end="")
"""


def test_nothing_that_a_library_prints_has_a_secret_or_a_control_character() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS],
        env=os.environ | {"LAB_TOKEN": "m4rkedTokenOfTheLab"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "m4rked" not in done.stdout + done.stderr
    assert done.stdout == "unfinished \\u001b ***"
    assert "\\u001b]0;owned\\u0007\n" in done.stderr
    assert "asked with ***" in done.stderr
    assert "http://alice:***@lab:5000 and ***" in done.stderr


class _Slow(io.StringIO):
    def write(self, text: str) -> int:
        time.sleep(0.001)  # in which another thread is at work
        return super().write(text)


def test_what_threads_print_at_the_same_time_is_in_the_order_in_which_each_printed_it() -> None:
    kept = _Slow()
    stream = RedactingStream(kept)
    printers = [Thread(target=stream.write, args=(f"{word} 1\n{word} 2\n",)) for word in "abcd"]
    for printer in printers:
        printer.start()
    for printer in printers:
        printer.join()
    lines = kept.getvalue().splitlines()
    assert all(lines[at].replace("1", "2") == lines[at + 1] for at in range(0, 8, 2)), lines
