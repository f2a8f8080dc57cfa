"""A made-up world of people, firms and places, and its passages.

The same seed gives the same world.
Every person works for one firm, every firm is located in one place, and every place in one land, one to one: a question leads
through one, two or three passages. Where a person was born, who founded a firm, and a place's land have no separate passage,
and stand in one passage only. Beside each stands a name that is not an answer.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from dagrpo.tools.retrieval import Passage

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person of the world."""

    name: str
    born_in: str
    works_for: str  # a firm

    @property
    def passage(self) -> Passage:
        """Under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} was born in {self.born_in}, works for {self.works_for}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Firm:
    """A firm, where people work."""

    name: str
    founded_by: str
    located_in: str  # a place

    @property
    def passage(self) -> Passage:
        """Under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} was founded by {self.founded_by}, is in {self.located_in}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place, where a firm is."""

    name: str
    located_in: str  # a land
    near: str  # another place, to distract

    @property
    def passage(self) -> Passage:
        """Under 60 characters."""
        return Passage(title=self.name, text=f"{self.name} lies in {self.located_in}, near {self.near}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world with equal numbers of people, firms and places."""

    people: tuple[Person, ...]
    firms: dict[str, Firm]
    places: dict[str, Place]

    @property
    def passages(self) -> list[Passage]:
        """One for each of its people, firms and places."""
        entities: list[Person | Firm | Place] = [*self.people, *self.firms.values(), *self.places.values()]
        return [entity.passage for entity in entities]


def names(seed: str) -> Iterator[str]:
    """Names of five or six letters, each once, without an end: Badok, Milora, ..."""
    letters, given = random.Random(seed), set[str]()
    while True:
        spelled = (letters.choice(CONSONANTS if i % 2 == 0 else VOWELS) for i in range(letters.choice((5, 6))))
        name = "".join(spelled).capitalize()
        if name not in given:
            given.add(name)
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
