"""What a command that was refused says: its sentence, and whether doing what it advises helps."""

import re
import shlex
import shutil
from pathlib import Path

from tests.pipeline.snakemake import clones

from dagrpo.utils.files import read_json

LONGEST_SENTENCE = 500
TO_DELETE = re.compile(r"delete ([\w./~-]+[\w~-])")
TO_RUN = re.compile(r"`((?:snakemake|dvc|dagrpo|git) [^`]+)`")


def run(folder: Path, command: tuple[str, ...], timeout: float = 900) -> tuple[int, str]:
    """(the exit code of a command in a clone, what it says)"""
    output = folder / "output.txt"
    output.unlink(missing_ok=True)
    code = clones.start(folder, *command).wait(timeout=timeout)
    return code, output.read_text()


def sentence_in(folder: Path, output: str) -> str:
    """Why a command was refused: as the stage that failed has written it down, else the last line of the output."""
    failures = sorted((folder / ".state/failures").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if failures and "stage failed" in output:
        return str(read_json(failures[-1])["sentence"])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def faults_of(sentence: str, output: str) -> list[str]:
    """What a refusal should not be."""
    return [
        *([f"a traceback is shown: {_last_of_traceback(output)}"] if "Traceback" in output else []),
        *([f"a bug is shown: {sentence[:300]}"] if sentence.startswith("a bug in ") else []),
        *([f"the sentence has {len(sentence)} characters"] if len(sentence) > LONGEST_SENTENCE else []),
        *(["nothing is said"] if not sentence else []),
    ]


def _last_of_traceback(output: str) -> str:
    """The exception that the first traceback in an output ends with."""
    _, _, rest = output.partition("Traceback (most recent call last):")
    return next((line for line in rest.splitlines() if line and not line.startswith(" ")), "")[:200]


def follow(folder: Path, sentence: str) -> None:
    """Do what the sentence advises: delete what it says to delete, run the command that it names."""
    for name in TO_DELETE.findall(sentence):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for command in TO_RUN.findall(sentence):
        run(folder, tuple(shlex.split(command)))
