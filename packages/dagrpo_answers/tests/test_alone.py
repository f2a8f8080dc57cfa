"""The package by itself: its page's example, and no import of dagrpo or torch."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_of_the_page_says_what_it_says() -> None:
    code = re.findall(r"^    (from dagrpo_answers import verify\n)    verify(.*?) +# (\w+)$", README.read_text(), re.M)
    ((line, call, value),) = code
    program = (
        f"{line}import sys\nprint(verify{call})\nprint([name for name in ('dagrpo', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [value, "[]"]


def test_the_error_alone_does_not_import_the_grammar() -> None:
    program = "import sys; from dagrpo_answers import UserError; print('dagrpo_answers.judging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
