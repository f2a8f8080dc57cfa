"""Questions about a made-up world that only a search can answer.

Every answer stands in one passage. The test split has another world, which shares no name with the train split's;
passages.parquet holds both. `ability` is the number of passages that a question leads through. A share of the train
problems demonstrates the searches, one for each passage, and the rest state the answer at once.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dagrpo.core.section import Section, Seed, Share
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows, chat
from dagrpo.tools.retrieval import Passage
from dagrpo_toys.generated_task import answer_message, call_message, demonstrating, generated, result_message

if TYPE_CHECKING:
    from dagrpo.data.config import Data

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person of the world."""

    name: str
    born_in: str
    works_for: str  # a firm

    @property
    def passage(self) -> Passage:
        """Return the person's passage, under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} was born in {self.born_in}, works for {self.works_for}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Firm:
    """A firm, where people work."""

    name: str
    founded_by: str
    located_in: str  # a place

    @property
    def passage(self) -> Passage:
        """Return the firm's passage, under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} was founded by {self.founded_by}, is in {self.located_in}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place, where a firm is."""

    name: str
    located_in: str  # a land
    near: str  # another place, to distract

    @property
    def passage(self) -> Passage:
        """Return the place's passage, under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} lies in {self.located_in}, near {self.near}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world with equal numbers of people, firms and places."""

    people: tuple[Person, ...]
    firms: dict[str, Firm]
    places: dict[str, Place]

    @property
    def passages(self) -> list[Passage]:
        """Return one passage for each person, firm and place."""
        entities: list[Person | Firm | Place] = [*self.people, *self.firms.values(), *self.places.values()]
        return [entity.passage for entity in entities]


def names(seed: str) -> Iterator[str]:
    """Yield distinct names of five or six letters without end: Badok, Milora, ..."""
    letters, previous = random.Random(seed), set[str]()
    while True:
        spelled = (letters.choice(CONSONANTS if i % 2 == 0 else VOWELS) for i in range(letters.choice((5, 6))))
        name = "".join(spelled).capitalize()
        if name not in previous:
            previous.add(name)
            yield name


def world(named: Iterator[str], size: int, seed: str) -> World:
    """Return a world of `size` people (at least 2), with the next names."""
    chance = random.Random(seed)
    people, firms, places = ([next(named) for _ in range(size)] for _ in range(3))
    neighbours = dict(zip(places, [*places[1:], places[0]], strict=True))
    works_for, located_in = chance.sample(firms, size), chance.sample(places, size)
    return World(
        people=tuple(
            Person(name=name, born_in=next(named), works_for=firm) for name, firm in zip(people, works_for, strict=True)
        ),
        firms={
            name: Firm(name=name, founded_by=next(named), located_in=place)
            for name, place in zip(firms, located_in, strict=True)
        },
        places={name: Place(name=name, located_in=next(named), near=neighbours[name]) for name in places},
    )


class Config(Section):
    """Questions about made-up people, firms and places, with a search."""

    seed: Seed = Field(0, description="Seed of both worlds.")
    train_people: Annotated[int, Field(ge=2, le=20_000)] = Field(
        4000, description="People of the world that is trained on; there are as many firms and as many places."
    )
    test_people: Annotated[int, Field(ge=2, le=20_000)] = Field(
        100, description="People of the held-out world, no name of which is in the other."
    )
    hops: Annotated[list[Literal[1, 2, 3]], Field(min_length=1, max_length=3)] = Field(
        [1, 2, 3],
        description="How many passages a question leads through; per person there are 3, 2 and 1 such questions.",
    )
    demonstrated_calls: Share = Field(
        0.5, description="Share of the training problems whose demonstration searches; the rest answer at once."
    )


TOOL = "search"
LEVELS = {1: "1_hop", 2: "2_hops", 3: "3_hops"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question, and the passages that lead to its answer: each names the title of the next."""

    text: str
    answer: str
    passages: tuple[Passage, ...]


def load(params: "Data") -> TaskRows:
    """Return the questions of `params.worlds`, over both worlds."""
    config = params.section(Config)
    seed = f"worlds/{config.seed}"
    named = names(seed)
    worlds = {
        split: world(named, people, f"{seed}/{split}")
        for split, people in (("train", config.train_people), ("test", config.test_people))
    }
    questions = {split: _shuffled(each, config, f"{seed}/{split}/questions") for split, each in worlds.items()}
    searching = demonstrating(len(questions["train"]), config.demonstrated_calls, seed)
    return generated(
        "worlds",
        [_row(question, index in searching) for index, question in enumerate(questions["train"])],
        [_row(question, False) for question in questions["test"]],
        levels=[LEVELS[hops] for hops in sorted(set(config.hops))],
        passages=[passage for each in worlds.values() for passage in each.passages],
    )


def _shuffled(one: World, config: Config, seed: str) -> list[Question]:
    questions = [
        question
        for person in one.people
        for question in questions_from(one, person)
        if len(question.passages) in config.hops
    ]
    random.Random(seed).shuffle(questions)
    return questions


def questions_from(one: World, person: Person) -> Iterator[Question]:
    """Yield the questions along the way from a person to a land: three of one hop, two of two, one of three."""
    firm = one.firms[person.works_for]
    place = one.places[firm.located_in]
    way = (person.passage, firm.passage, place.passage)
    yield Question(text=f"Where was {person.name} born?", answer=person.born_in, passages=way[:1])
    yield Question(text=f"Who founded {firm.name}?", answer=firm.founded_by, passages=way[1:2])
    yield Question(text=f"Where does {place.name} lie?", answer=place.located_in, passages=way[2:])
    yield Question(text=f"Who founded the firm of {person.name}?", answer=firm.founded_by, passages=way[:2])
    yield Question(text=f"In which land is {firm.name}?", answer=place.located_in, passages=way[1:])
    yield Question(text=f"In which land is the firm of {person.name}?", answer=place.located_in, passages=way)


def _row(question: Question, searches: bool) -> Row:
    answer = f"<answer>{question.answer}</answer>"
    return Row(
        prompt=chat(question.text),
        question=question.text,
        answer=answer,
        ground_truth=json.dumps([question.answer]),
        ability=LEVELS[len(question.passages)],
        verifier="exact_match",
        tools=(TOOL,),
        demonstration=_demonstration(question.passages, answer) if searches else (),
    )


def _demonstration(passages: Sequence[Passage], answer: str) -> tuple[dict[str, object], ...]:
    """Return one search per name, whose best result is the passage with that title, and then the answer."""
    turns = [
        turn
        for passage in passages
        for turn in (call_message(TOOL, {"query": passage.title}), result_message(passage.text))
    ]
    return (*turns, answer_message(answer))


TASK = Task(name="worlds", load=load, verifier="exact_match", tools=(TOOL,))
