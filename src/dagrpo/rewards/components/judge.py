"""judge: the verdict of a model on the attempt, by a rubric."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.section import MOST_TOKENS, Seconds
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.untrusted_json import read_json
from dagrpo.core.urls import mistake_in_server
from dagrpo.rewards.components import Component, OpenComponent, RewardModel, Weighted
from dagrpo.rewards.judge_prompt import AGAIN, Answer, RecordedAnswers, prompt, require_rubric, schema_of, score_in
from dagrpo.utils.checksummed_json import escaped_digest
from dagrpo_answers.own_text import without_thoughts

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "JUDGE_API_KEY"
ANSWERS = "data/judge_answers.jsonl"
MOST_BYTES = 4 << 20  # of an answer
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
METRICS = tuple(
    f"reward/judge_{name}" for name in ("calls", "tokens", "unparsable_fraction", "without_answer_fraction")
)


class Config(Weighted):
    """Score of a model that reads the attempt and a rubric, from 0 to 1. A judge has no part in evaluations."""

    url: str = Field(
        "",
        description=f"Address of a server that speaks OpenAI's protocol, such as http://127.0.0.1:30000/v1. Environment variable "
        f"{KEY_VARIABLE}: its key.",
    )
    model: str = Field("", description="Name of the judge at that server.")
    rubric: str = Field(
        "",
        description="File with the rubric, a text in which {attempt}, and if wanted {question} and {ground_truth}, are replaced. Its "
        "content is part of the stage's identity.",
    )
    best: Annotated[int, Field(ge=1, le=1000)] = Field(
        10, description="Best score: a verdict is a whole number from 0 to it, and the component that number / best."
    )
    reasons: bool = Field(True, description="Let the judge write a reason before its score.")
    structured: bool = Field(
        True, description="Ask the server to hold the answer to the JSON schema of a verdict (response_format)."
    )
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(1024, description="Most tokens of an answer.")
    temperature: Annotated[float, Field(ge=0, le=100)] = Field(0.0, description="Sampling temperature; 0 is greedy.")
    longest: Annotated[int, Field(ge=100, le=10_000_000)] = Field(
        40_000, description="Most characters of an attempt; of a longer one the middle is left out."
    )
    concurrency: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="Most requests at the same time.")
    seconds: Seconds = Field(120.0, description="Time limit of one request.")
    retries: Annotated[int, Field(ge=0, le=100)] = Field(
        3,
        description="Most retries of a request that the server does not answer; then the run ends, and can be resumed.",
    )
    answers: str = Field(
        ANSWERS,
        description="File in which answers are recorded by the digest of what was asked; a run repeats from it without the judge.",
    )

    def check(self) -> None:
        """Raise UserError for an address, a name or a rubric that cannot be used."""
        if mistake := mistake_in_server(self.url):
            raise UserError(
                f"the address in reward.components.judge.url {mistake}: write it as http://127.0.0.1:30000/v1"
            )
        if not self.model:
            raise UserError("reward.components.judge.model is empty: name the model that the server serves")
        if Path(self.rubric).exists():  # a finished run does not need it; before any other, snakemake asks for it
            _rubric(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Outcome for one attempt: its score, and the judge's answers that it took."""

    score: int | None
    answers: tuple[Answer, ...]


# In the body of status 400 or 422: the prompt exceeds the context; or it does together with max_tokens, which may be what is wrong.
PROMPT_TOO_LONG = re.compile(rb"\b(?:input|prompt)\b[^.]{0,60}\b(?:too long|longer|exceeds?)\b", re.IGNORECASE)
TOO_LONG = re.compile(rb"context[_ ](?:length|window)|longer than the model", re.IGNORECASE)


class _Judge:
    """Judge behind a server, with its recorded answers."""

    def __init__(
        self, config: Config, rubric: str, client: "Callable[[], httpx.AsyncClient]", threads: ThreadPoolExecutor
    ) -> None:
        self._config = config
        self._rubric = rubric
        self._client = client
        self._threads = threads
        self._recorded = RecordedAnswers(Path(config.answers))
        self._since: list[_Judged] = []
        self._has_answered = False  # so that the parameters are right, and a refusal is of its text

    def values(self, attempts: Sequence[GradedTrajectory]) -> list[float | None]:
        """Return score / best of each attempt; 0 without an answer after its thoughts, None where two of the judge's were no verdict.

        Equal questions are asked once.
        """
        questions = [self._question(each) for each in attempts]
        different = dict.fromkeys(questions)
        known = dict(zip(different, self._threads.map(self._judged, different), strict=True))
        judged = [known[question] for question in questions]
        self._since += judged
        return [None if each.score is None else each.score / self._config.best for each in judged]

    def metrics(self) -> dict[str, float]:
        """Return the answers and their tokens since the last call, recorded ones included: the same when a run is repeated."""
        judged, self._since = self._since, []
        asked = [each for each in judged if each.answers]
        answers = [answer for each in asked for answer in each.answers]
        tokens = sum(answer.prompt_tokens + answer.completion_tokens for answer in answers)
        unparsable = sum(each.score is None for each in asked) / max(1, len(asked))
        without_answer = (len(judged) - len(asked)) / max(1, len(judged))
        return dict(zip(METRICS, (float(len(answers)), float(tokens), unparsable, without_answer), strict=True))

    def _question(self, attempt: GradedTrajectory) -> str:
        """Return what the judge is asked; "" for an attempt without an answer."""
        config, row = self._config, attempt.trajectory.prompt.row
        text = without_thoughts(attempt.trajectory.text)
        if not text.strip():
            return ""
        texts = {"question": row.question, "ground_truth": row.ground_truth, "attempt": text}
        return prompt(self._rubric, texts, config.best, config.longest, reasons=config.reasons)

    def _judged(self, question: str) -> _Judged:
        if not question:
            return _Judged(score=0, answers=())
        answers: list[Answer] = []
        for asked in (question, question + AGAIN):
            answers.append(self._answer(asked))
            score = score_in(answers[-1].text, self._config.best, reasons=self._config.reasons)
            if score is not None:
                return _Judged(score=score, answers=tuple(answers))
        return _Judged(score=None, answers=tuple(answers))

    def _answer(self, question: str) -> Answer:
        """Return the recorded answer, else the server's. Raises UserError if it does not answer."""
        body = self._body(question)
        asked = escaped_digest(body)
        answer = self._recorded.get(asked)
        if answer is None:
            answer = self._answer_of_server(body)
            self._recorded.add(asked, answer)
        self._has_answered |= bool(answer.text)
        return answer

    def _body(self, question: str) -> dict[str, Any]:
        config = self._config
        messages = [{"role": "user", "content": question}]  # without a system message, which some models refuse
        body: dict[str, Any] = {"model": config.model, "messages": messages, "temperature": config.temperature}
        body |= {"max_tokens": config.max_tokens, "seed": 0}
        if config.structured:
            schema = {"name": "verdict", "strict": True, "schema": schema_of(config.best, reasons=config.reasons)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _answer_of_server(self, body: dict[str, Any]) -> Answer:
        for retry in range(self._config.retries):
            try:
                return self._posted(body)
            except ConnectionError:
                time.sleep(min(30.0, 0.5 * 2**retry))
        try:
            return self._posted(body)
        except ConnectionError as error:
            raise UserError(
                f"the judge at {self._config.url} {error}: correct reward.components.judge or {KEY_VARIABLE}, or start its server, then "
                "resume the run; answers so far are recorded"
            ) from None

    def _posted(self, body: dict[str, Any]) -> Answer:
        """Return the server's answer. Raises ConnectionError with its fault, the middle of a sentence."""
        import httpx

        try:
            status, received = asyncio.run(asyncio.wait_for(self._received(body), self._config.seconds))
        except TimeoutError:
            raise ConnectionError(f"did not answer within {self._config.seconds:g} s") from None
        except httpx.HTTPError as error:
            raise ConnectionError(f"cannot be asked ({type(error).__name__}: {one_line(str(error), 200)})") from None
        if self._refuses_text(status, received):
            return Answer(text="", prompt_tokens=0, completion_tokens=0)  # no verdict
        if status != 200:
            raise ConnectionError(f"answers {status}: {_beginning(received)}")
        return _read(bytes(received))

    async def _received(self, body: dict[str, Any]) -> tuple[int, bytearray]:
        """Return status and body of the response. httpx limits each read, so a deadline over all of them needs a loop."""
        received = bytearray()
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        async with self._client() as http, http.stream("POST", url, json=body) as response:
            async for part in response.aiter_bytes():
                received += part
                if len(received) > MOST_BYTES:
                    raise ConnectionError(f"answers with more than {MOST_BYTES:,} bytes")
            return response.status_code, received

    def _refuses_text(self, status: int, body: bytearray) -> bool:
        """Return True if a response refuses one text, and not every one for a wrong parameter."""
        if status == 413 or (status in (400, 422) and PROMPT_TOO_LONG.search(body)):
            return True
        return self._has_answered and (status == 422 or (status == 400 and TOO_LONG.search(body) is not None))


def _read(received: bytes) -> Answer:
    """Return the answer in a response. Raises ConnectionError for any other body."""
    try:
        response = read_json(received)
        text = response["choices"][0]["message"]["content"]
        usage = response.get("usage") or {}
        tokens = [usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens")]
        if not isinstance(text, str | None) or not all(type(count) is int and count >= 0 for count in tokens):
            raise TypeError
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ConnectionError(f"does not answer in OpenAI's protocol: {_beginning(received)}") from None
    return Answer(text=text or "", prompt_tokens=tokens[0], completion_tokens=tokens[1])


def _beginning(received: bytes | bytearray) -> str:
    return one_line(received[:800].decode(errors="replace"), 200)


@contextmanager
def _open(config: Config, reward_model: RewardModel | None) -> Iterator[OpenComponent]:
    import httpx

    key = os.environ.get(KEY_VARIABLE)
    headers = {"Accept-Encoding": "identity"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    outside = urlsplit(config.url).hostname not in LOOPBACK
    verify = httpx.create_ssl_context()  # once, as it takes longer than a request
    client = partial(httpx.AsyncClient, headers=headers, timeout=config.seconds, trust_env=outside, verify=verify)
    with ThreadPoolExecutor(config.concurrency, thread_name_prefix="judge") as threads:
        yield _Judge(config, _rubric(config), client, threads)


def _rubric(config: Config) -> str:
    try:
        rubric = Path(config.rubric).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"reward.components.judge.rubric is {config.rubric!r}, which cannot be read ({type(error).__name__}): name a text file"
        ) from None
    require_rubric(rubric, config.rubric)
    return rubric


COMPONENT = Component(
    config=Config,
    open=_open,
    files=lambda config: [config.rubric],
    limits=lambda config: (0.0, 1.0),
)
