"""Environment classes and reward functions as TRL's documentation has them."""

import random
from collections.abc import Iterator

import numpy as np


class Guess:
    """A number is to be guessed."""

    def __init__(self) -> None:
        self.number = 0
        self.guesses = 0
        self.reward = 0.0

    def reset(self, **row: object) -> str | None:
        self.number = int(str(row["ground_truth"]))
        return " It is below 10."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: What it may be.

        Returns:
            Whether it is that number.
        """
        self.guesses += 1
        if number > 9:
            raise ValueError("it is below 10")
        self.reward = 1.0 / self.guesses if number == self.number else 0.0
        return "right" if self.reward else "wrong"

    def get_reward(self) -> float:
        return self.reward

    def _hidden(self) -> str:
        return str(self.number)


class Broken(Guess):
    def reset(self, **row: object) -> str | None:
        raise RuntimeError("out of order")


class Undescribed(Guess):
    def peek(self) -> str:
        return "3"


class Dice(Guess):
    """Draws from random numbers that all attempts share."""

    def reset(self, **row: object) -> str | None:
        self.number = random.randint(1, 6)
        return None


class Unrewarded:
    """As in TRL's examples: a reward function looks into the object."""

    def reset(self, **row: object) -> None:
        self.score = 0.0

    def add(self, number: int) -> str:
        """Add to the score."""
        self.score += number
        return f"{self.score}"


def score(environments: list[Unrewarded], **row: object) -> list[float]:
    return [environment.score for environment in environments]


def turns(prompts: list[object], completions: list[list[dict[str, object]]], **row: object) -> list[float]:
    assert len(prompts) == len(completions) == 1
    return [sum(message["role"] == "assistant" for message in completion) for completion in completions]


def seen(completions: list[list[dict[str, object]]], **row: object) -> list[float]:
    """Return 1 if no thought is in what it sees, else 0."""
    return ["secret" not in str(completion) for completion in completions]


def right_columns(ground_truth: list[str], index: list[int], **row: object) -> list[None]:
    assert (ground_truth, index) == (["3"], [0])
    return [None]


def two_numbers(environments: list[Unrewarded], **row: object) -> list[float]:
    return [1.0, 2.0]


def broken(environments: list[Unrewarded], **row: object) -> list[float]:
    raise RuntimeError("no score")


def lazy(environments: list[Unrewarded], **row: object) -> Iterator[float]:
    """Raise when the result is read."""
    yield broken(environments)[0]


class NoNumber:
    """Something that only says so when it is asked."""

    def __float__(self) -> float:
        raise RuntimeError("no number")


def odd(environments: list[Unrewarded], **row: object) -> list[NoNumber]:
    return [NoNumber()]


class Judge:
    """A reward function that is an object."""

    def __call__(self, environments: list[Unrewarded], **row: object) -> list[float]:
        raise RuntimeError("no score")


judge = Judge()


def huge(environments: list[Unrewarded], **row: object) -> list[int]:
    return [10**400]


def large(environments: list[Unrewarded], **row: object) -> list[float]:
    return [1e39]


def long(environments: list[Unrewarded], **row: object) -> str:
    return "x" * 10_000


class Huge(Guess):
    def get_reward(self) -> int:
        return 10**400


class Numpy(Guess):
    """Its reward is a number, and no Python float."""

    def get_reward(self) -> np.float32:  # type: ignore[override]
        return np.float32(0.5)
