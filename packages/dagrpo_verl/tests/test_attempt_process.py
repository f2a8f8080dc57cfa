"""Process that makes verl's attempts, and the pipe to verl's agent loops: what is asked, and which attempts are left out."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.trainer.attempts import graded

from dagrpo.core.types import PictureTokens, PromptPictures
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.tools import InfrastructureFailure
from dagrpo_verl.agent_loop import AttemptProcess
from dagrpo_verl.attempt_process import Attempts, of_one_sequence

TOKENIZER = character_tokenizer(128)


def asked(text: str, special: bool, tmp_path: Path) -> str:
    """Return what is sent for a prompt of a picture, three tokens of it, and a text; with its marks as plain characters or not."""
    image, own = 1000, TOKENIZER.encode("ab", add_special_tokens=False)
    written = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=not special)
    pictures = PromptPictures(
        files=(b"a picture",), tokens=PictureTokens(image=image, video=1001, start=own[0], end=own[1])
    )
    replies = io.StringIO()
    attempts = Attempts(
        {"reward": {}, "seed": 0, "state": str(tmp_path)}, TOKENIZER, [], cast(Any, None), cast(Any, None), replies
    )

    async def ask() -> None:
        waiting = asyncio.ensure_future(attempts._complete(0, pictures)((*written,), 5))
        await asyncio.sleep(0)
        if waiting.done():
            waiting.result()
        waiting.cancel()

    asyncio.run(ask())
    return replies.getvalue()


def test_a_prompt_with_pictures_is_asked_unless_its_text_would_be_read_as_other_tokens(tmp_path: Path) -> None:
    assert '"pictures": ["YSBwaWN0dXJl"]' in asked("1+1<|end|>", special=True, tmp_path=tmp_path)
    with pytest.raises(InfrastructureFailure, match="its tokens are not those of their text"):
        asked("1+1<|end|>", special=False, tmp_path=tmp_path)


class _Broken:
    """An agent that has a bug."""

    def session(self, *_: Any) -> None:
        """None: no attempt gets as far as to need one."""

    async def make_attempt(self, *_: Any) -> None:
        raise RuntimeError("no attempt")


def test_an_attempt_is_on_the_shared_disk_before_its_answer_and_holds_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = io.StringIO()
    prompt = graded(0, 0, reward=1.0).trajectory.prompt
    job = {"reward": {}, "seed": 0, "state": str(tmp_path)}
    attempts = Attempts(job, TOKENIZER, [prompt], cast(Any, _Broken()), cast(Any, None), replies)
    released, waiting = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        waiting.set()
        assert released.wait(30), "the loop stands still while the disk is slow"

    monkeypatch.setattr("os.fsync", slow)

    async def make() -> None:
        attempt = asyncio.create_task(attempts._attempt(0, step=1, index=prompt.row.index, sample=0))
        while not waiting.is_set():
            await asyncio.sleep(0.01)
        assert replies.getvalue() == ""
        released.set()
        await attempt

    asyncio.run(make())
    (log,) = (tmp_path / "draws").iterdir()
    assert "RuntimeError: no attempt" in log.read_text()
    assert json.loads(replies.getvalue()) == {"attempt": 0, "error": "no attempt"}


def test_a_conversation_of_several_sequences_is_left_out() -> None:
    one = graded(0, 0, reward=1.0).trajectory
    two = replace(one, samples=one.samples * 2)
    assert of_one_sequence(one) is one
    assert (of_one_sequence(two).learned, of_one_sequence(two).fault[:22]) == (False, "it became 2 sequences,")


FINISHES_ONE = """
import json, sys
number = json.loads(sys.stdin.readline())["attempt"]
print(json.dumps({"attempt": number, "done": {"reward": 1.0}}), flush=True)
"""
WRITES_NO_JSON = "input(); print('Killed', flush=True); input()"


async def no_policy(question: Mapping[str, Any]) -> dict[str, Any]:
    raise AssertionError("no token is asked for")


async def made(process: AttemptProcess) -> list[Any]:
    """Return what becomes of two attempts, one after the other."""
    place = {"step": 1, "index": 0, "sample": 0}
    found = []
    for _ in range(2):
        async with asyncio.timeout(20):
            found.append(await asyncio.gather(process.make(place, no_policy), return_exceptions=True))
        await asyncio.sleep(0.2)  # the process ends
    return [each for (each,) in found]


def test_a_process_that_has_ended_is_started_again_by_the_next_attempt() -> None:
    assert asyncio.run(made(AttemptProcess([sys.executable, "-c", FINISHES_ONE]))) == 2 * [{"reward": 1.0}]


def test_a_process_that_writes_no_json_leaves_no_attempt_waiting() -> None:
    for each in asyncio.run(made(AttemptProcess([sys.executable, "-c", WRITES_NO_JSON]))):
        assert isinstance(each, RuntimeError)
        assert "has ended" in str(each)
