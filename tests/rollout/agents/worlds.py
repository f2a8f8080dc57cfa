"""An environment class as TRL's documentation has them."""


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
