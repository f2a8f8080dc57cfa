"""Questions about small generated pictures: count, read a length, name a colour.

No question can be answered without its picture, since the text of a level is always the same: without it the policy can only
guess, and is right once in as many times as the level has answers. Each picture occurs once, so none of test is in train.
Swapped, the pictures are permuted among the problems of a split, which measures what the text alone gives.
"""

import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import IMAGE
from dagrpo.core.section import Section, Seed
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows, chat
from dagrpo_toys.generated_task import distinct_in_turn, generated

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

    from dagrpo.data.config import Data
    from dagrpo.rewards.config import Reward

ShapesLevel = Literal["count", "colour", "length"]


class Config(Section):
    """Questions about small pictures that are drawn."""

    seed: Seed = Field(0, description="Seed of the generator that draws the pictures.")
    train: Annotated[int, Field(ge=2, le=100_000)] = Field(4000, description="Number of training problems.")
    test: Annotated[int, Field(ge=2, le=20_000)] = Field(
        300, description="Number of held-out problems; none of their pictures is in train."
    )
    levels: Annotated[list[ShapesLevel], Field(min_length=1, max_length=3)] = Field(
        ["count", "colour", "length"],
        description="Kinds of questions, in turn: the number of shapes, the colour of one, the length of a labelled line.",
    )
    swapped: bool = Field(
        False,
        description="Control experiment: permute the pictures among the problems of a split, so that the text alone is left.",
    )

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        for level in self.levels:
            if self.levels.count(level) > 1:
                raise UserError(f"data.shapes.levels lists {level} twice: list each level once")
        return self

    def check(self, reward: "Reward") -> None:
        """Raise UserError if both controls are on: a lower score would not show which of them is the reason."""
        if self.swapped and reward.permuted:
            raise UserError(
                "reward.permuted and data.shapes.swapped are both true, and a score that falls would not say which of them is the reason: "
                "set one of them to false"
            )


SIDE = 84  # pixels of every picture, both ways: three tokens a side where patches have 14
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 40),
    "blue": (40, 60, 220),
    "orange": (250, 150, 20),
    "black": (0, 0, 0),
}
FORMS = ("circle", "square", "triangle")
MOST_SHAPES = 5  # to be counted, each in its own cell
CELL = SIDE // 3
LONGEST = 9  # of a length: it is written with one digit
# Digits from 1 on, three dots wide and five high, row after row.
DIGITS = (
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001010010010",
    "111101111101111",
    "111101111001111",
)
DOT = 14  # pixels of a digit's dot: a patch, so that a tower of two layers learns to read it in minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a picture: its colour, and its box in pixels."""

    form: str  # one of FORMS, "line", or a digit
    colour: str
    box: tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Description of a picture, with the question about it."""

    level: ShapesLevel
    answer: str
    shapes: tuple[Shape, ...]

    def file(self) -> bytes:
        """Return the picture as an RGB PNG on white."""
        from PIL import Image, ImageDraw  # only this task draws

        picture = Image.new("RGB", (SIDE, SIDE), "white")
        canvas = ImageDraw.Draw(picture)
        for shape in self.shapes:
            _draw(canvas, shape)
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()


def _counted(numbers: random.Random) -> Scene:
    count = numbers.randint(1, MOST_SHAPES)
    cells = numbers.sample([(column * CELL, row * CELL) for row in range(3) for column in range(3)], count)
    shapes = tuple(_somewhere(numbers, numbers.randint(16, 23), left, top, CELL) for left, top in cells)
    return Scene(level="count", answer=str(count), shapes=shapes)


def _coloured(numbers: random.Random) -> Scene:
    shape = _somewhere(numbers, numbers.randint(24, 52), 0, 0, SIDE)
    return Scene(level="colour", answer=shape.colour, shapes=(shape,))


def _measured(numbers: random.Random) -> Scene:
    """Return a line across the picture, and above it a digit that says how long it is; the line's own length says nothing."""
    length, colour = numbers.randint(1, LONGEST), numbers.choice([*COLOURS])
    height = numbers.randint(74, 80)
    line = Shape(form="line", colour=colour, box=(numbers.randint(0, 14), height, numbers.randint(69, 83), height + 2))
    left = DOT * numbers.randint(0, 3)
    digit = Shape(form=str(length), colour=colour, box=(left, 0, left + 3 * DOT - 1, 5 * DOT - 1))
    return Scene(level="length", answer=str(length), shapes=(line, digit))


def _somewhere(numbers: random.Random, size: int, left: int, top: int, room: int) -> Shape:
    """Return a shape of that size, anywhere within a square of pixels that begins at left and top."""
    form, colour = numbers.choice(FORMS), numbers.choice([*COLOURS])
    left += numbers.randint(1, room - size - 1)
    top += numbers.randint(1, room - size - 1)
    return Shape(form=form, colour=colour, box=(left, top, left + size - 1, top + size - 1))


LEVELS: Mapping[ShapesLevel, tuple[str, Callable[[random.Random], Scene]]] = {
    "count": ("How many shapes?", _counted),
    "colour": ("Which colour?", _coloured),
    "length": ("How long is it?", _measured),
}


def _draw(canvas: "ImageDraw", shape: Shape) -> None:
    colour, (left, top, right, bottom) = COLOURS[shape.colour], shape.box
    match shape.form:
        case "circle":
            canvas.ellipse(shape.box, fill=colour)
        case "triangle":
            canvas.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=colour)
        case "square" | "line":
            canvas.rectangle(shape.box, fill=colour)
        case digit:
            for place, dot in enumerate(DIGITS[int(digit) - 1]):
                x, y = left + place % 3 * DOT, top + place // 3 * DOT
                if dot == "1":
                    canvas.rectangle((x, y, x + DOT - 1, y + DOT - 1), fill=colour)


def load(params: "Data") -> TaskRows:
    """Return the problems of `params.shapes`, the levels in turn."""
    config = params.section(Config)
    draws = [partial(LEVELS[level][1], random.Random(f"shapes/{config.seed}/{level}")) for level in config.levels]
    scenes = distinct_in_turn(draws, lambda scene: frozenset(scene.shapes), "data.shapes", config.test + config.train)
    train, test = _rows("train", scenes[config.test :], config), _rows("test", scenes[: config.test], config)
    return generated("shapes", train, test, levels=tuple(config.levels))


def _rows(split: str, scenes: Sequence[Scene], config: Config) -> list[Row]:
    files = [scene.file() for scene in scenes]
    if config.swapped:
        files = _swapped(files, random.Random(f"shapes/{config.seed}/{split}/swapped"))
    return [_row(scene, file) for scene, file in zip(scenes, files, strict=True)]


def _swapped(files: Sequence[bytes], numbers: random.Random) -> list[bytes]:
    """Return the items permuted by one random cycle, so that none stays in its place."""
    ring = numbers.sample(range(len(files)), len(files))
    swapped = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return [files[swapped[place]] for place in range(len(files))]


def _row(scene: Scene, file: bytes) -> Row:
    question = LEVELS[scene.level][0]
    return Row(
        prompt=chat(f"{IMAGE}{question}"),
        question=question,
        answer=f"\\boxed{{{scene.answer}}}",
        ground_truth=scene.answer,
        ability=scene.level,
        verifier="math",
        images=(file,),
    )


TASK = Task(name="shapes", load=load, verifier="math", images=True)
