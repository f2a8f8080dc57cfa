"""Sweeps: several sets of values for the experiment of params.yaml.

A file of presets/sweeps gives them as a grid, as a list or at random; each set is a cell. Adding a value leaves the other cells as
they are.
"""

import math
import random
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from dagrpo.config.mistakes import mistakes
from dagrpo.config.places import PRESETS, presets_of
from dagrpo.core.errors import UserError, nearest, nearest_of
from dagrpo.core.escape import sentences
from dagrpo.core.section import Section, Seed
from dagrpo.utils.files import canonical_json
from dagrpo.utils.yaml_text import read_yaml

KIND = "sweeps"
SHARES = "experiment.train"
MOST_CELLS = 1000
Key = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$", max_length=256)]  # dotted, of params.yaml
Values = Annotated[list[Any], Field(min_length=1, max_length=MOST_CELLS)]
Cell = Mapping[str, Any]  # values by dotted key


class Range(Section):
    """An interval to draw from."""

    low: float = Field(description="Least value.")
    high: float = Field(description="Greatest value.")
    log: bool = Field(False, description="Draw the logarithm evenly, not the value.")
    integer: bool = Field(False, description="Round to a whole number.")

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise UserError(f"a range from {self.low:g} to {self.high:g}: low is below high, and with `log` above 0")
        return self

    def value(self, share: float) -> float | int:
        """Return the value at a share of the way from low to high, of three digits, never beyond them."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.integer else min(max(float(f"{value:.3g}"), self.low), self.high)


class Random(Section):
    """Cells drawn at random; of a larger count the first ones are the same."""

    count: Annotated[int, Field(ge=1, le=MOST_CELLS)] = Field(description="Number of cells.")
    seed: Seed = Field(0, description="Seed of the draws.")
    axes: Annotated[dict[Key, Range | Values], Field(min_length=1)] = Field(
        description="By dotted key, a range or a list of values."
    )


class Sweep(Section):
    """A file of presets/sweeps: its cells, by one of `grid`, `cells` and `random`."""

    seeds: Annotated[list[Seed], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Seeds of each cell; null: those of params.yaml."
    )
    grid: dict[Key, Values] = Field({}, description="Every combination of these values, by dotted key.")
    cells: Annotated[list[dict[Key, Any]], Field(max_length=MOST_CELLS)] = Field(
        [], description="These sets of values, by dotted key."
    )
    random: Random | None = Field(None, description="Values drawn at random.")

    @model_validator(mode="after")
    def _check_cells(self) -> Self:
        given = [name for name in ("grid", "cells", "random") if getattr(self, name)]
        if len(given) != 1:
            raise UserError(
                f"a sweep has one of `grid`, `cells` and `random`, and this one has {' and '.join(given) or 'none'}"
            )
        if math.prod(map(len, self.grid.values())) > MOST_CELLS:
            raise UserError(f"a sweep has at most {MOST_CELLS:,} cells: leave out values, or draw some with `random`")
        if of_runtime := [key for key in self.axes if key.startswith("runtime.")]:
            raise UserError(f"{of_runtime[0]} changes no result, so that its cells would be one: leave it out")
        if of_experiment := [key for key in self.axes if key.startswith("experiment.") and key != SHARES]:
            raise UserError(
                f"{of_experiment[0]} cannot vary between cells: `seeds` sets the seeds of all, and params.yaml the tasks; {SHARES} can, "
                "by other shares of these"
            )
        return self

    @property
    def axes(self) -> list[str]:
        """List the dotted keys that the cells set."""
        if self.random is not None:
            return list(self.random.axes)
        return list(self.grid or dict.fromkeys(key for cell in self.cells for key in cell))

    def all_cells(self) -> list[Cell]:
        """List the cells, equal ones once."""
        return list({canonical_json(cell): cell for cell in self._drawn()}.values())

    def _drawn(self) -> Iterator[Cell]:
        if self.random is not None:
            yield from (_draw(self.random, number) for number in range(self.random.count))
        elif self.grid:
            yield from (dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values()))
        else:
            yield from self.cells


def _draw(random_cells: Random, number: int) -> Cell:
    """Return one cell, each value from a generator that depends on seed, number and key alone: another axis changes none."""
    cell = {}
    for key, values in random_cells.axes.items():
        share = random.Random(f"{random_cells.seed} {number} {key}").random()  # no secret
        cell[key] = values.value(share) if isinstance(values, Range) else values[int(share * len(values))]
    return cell


def known(folder: Path = PRESETS) -> list[str]:
    """List the names of sweeps."""
    return sorted(presets_of(KIND, folder))


def read_sweep(name: str, folder: Path = PRESETS) -> Sweep:
    """Read a sweep by its name, or a file that ends with .yaml. Raises UserError if it is unknown or does not fit the schema."""
    path = Path(name) if name.endswith(".yaml") else presets_of(KIND, folder).get(name)
    if path is None or not path.exists():
        raise UserError(f"there is no sweep `{name}` in {folder / KIND}: {nearest(name, known(folder))}.")
    try:
        return Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        unknown = [
            str(each["loc"][0]) for each in errors if each["type"] == "extra_forbidden" and len(each["loc"]) == 1
        ]
        if axes := [key for key in unknown if nearest_of(key, Sweep.model_fields, cutoff=0.5) is None]:
            example = f"{axes[0]}{'' if '.' in axes[0] else '.KEY'}"
            raise UserError(
                f"{path}: `{axes[0]}` stands below `grid`, with its values: `grid: {{{example}: [...]}}`."
            ) from None
        faults = list(mistakes(errors))
    raise UserError(
        sentences((mistake.sentence(str(path), list(Sweep.model_fields)) for mistake in faults), len(faults))
    )
