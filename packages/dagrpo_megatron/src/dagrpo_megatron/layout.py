"""Layout of a model: Hugging Face tensors as boxes of Megatron tensors.

It is a family's table, written out for one model. Megatron stacks the tensors of all layers, and of all experts, into one:
(layers, experts, rows, columns).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo_megatron.config import ModelConfig, Shape
from dagrpo_megatron.families import Family, Rule

LAYERS = "decoder.layers."
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Box of a Megatron tensor with the Hugging Face tensors in it: one, or query, key and value."""

    key: str
    also_known_as: tuple[str, ...]
    layer: int | None  # None: outside the layers
    size: Sizes  # of the whole Megatron tensor
    offsets: Sizes
    sizes: Sizes
    names: tuple[str, ...]
    shapes: tuple[Sizes, ...]  # of the Hugging Face tensors
    groups: int  # query groups by which the names alternate; 0: a copy

    @property
    def is_vocabulary(self) -> bool:
        """Return True if Megatron may hold more or fewer rows than the Hugging Face layout: it pads the vocabulary."""
        return self.key in ("embedding.word_embeddings.weight", "output_layer.weight")

    def join(self, tensors: list[Tensor]) -> Tensor:
        """Return the box, joined from the Hugging Face tensors in the order of `names`."""
        if not self.groups:
            return tensors[0].reshape(self.sizes)
        rest = self.shapes[0][1:]
        return torch.cat([tensor.reshape(self.groups, -1, *rest) for tensor in tensors], dim=1).reshape(self.sizes)

    def part(self, box: Tensor, name: str) -> Tensor:
        """Return one of the Hugging Face tensors in the box; a copy where they alternate."""
        which = self.names.index(name)
        if not self.groups:
            return box.reshape(self.shapes[which])
        heights = [shape[0] // self.groups for shape in self.shapes]
        by_group = box.reshape(self.groups, sum(heights), *self.shapes[0][1:])
        return by_group.narrow(1, sum(heights[:which]), heights[which]).reshape(self.shapes[which])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All pieces of a model, in the order in which they are written: embedding, layers, output."""

    family: Family
    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def names(self) -> dict[str, Piece]:
        """Return the piece that holds each Hugging Face tensor."""
        return {name: piece for piece in self.pieces for name in piece.names}


def layout_of(config: ModelConfig) -> Layout:
    """Return the layout of a model."""
    pieces = tuple(_pieces(config.family, config.shape))
    return Layout(family=config.family, shape=config.shape, pieces=pieces)


def _pieces(family: Family, shape: Shape) -> Iterator[Piece]:
    rules = [rule for rule in family.rules if rule.only_if is None or getattr(shape, rule.only_if)]
    for rule in rules:
        if rule.place == "model":
            yield from _boxes(rule, shape, rule.megatron, "", (), ())
    for number in range(shape.layers):
        for rule in rules:
            key, prefix = LAYERS + rule.megatron, f"model.layers.{number}."
            if rule.place == "layer":
                yield from _boxes(rule, shape, key, prefix, (shape.layers,), (number,))
            for expert in range(shape.experts if rule.place == "expert" else 0):
                below = f"{prefix}{family.experts}.{expert}."
                yield from _boxes(rule, shape, key, below, (shape.layers, shape.experts), (number, expert))


def _boxes(rule: Rule, shape: Shape, key: str, prefix: str, stack: Sizes, place: Sizes) -> Iterator[Piece]:
    """Yield the pieces of a rule at one index of the stack: one, or one per name with its rows below those of the previous one."""
    rows = [shape.size(dimension) for dimension in rule.rows]
    columns = tuple(shape.size(dimension) for dimension in rule.columns)
    names = tuple(prefix + name for name in rule.names)
    split = [range(len(names))] if rule.interleaved else [range(n, n + 1) for n in range(len(names))]
    for chosen in split:
        height = sum(rows[n] for n in chosen)
        yield Piece(
            key=key,
            also_known_as=tuple(LAYERS + other for other in rule.also_known_as),
            layer=place[0] if place else None,
            size=(*stack, sum(rows), *columns),
            offsets=(*place, sum(rows[: chosen[0]]), *(0 for _ in columns)),
            sizes=(*(1 for _ in place), height, *columns),
            names=tuple(names[n] for n in chosen),
            shapes=tuple((rows[n], *columns) for n in chosen),
            groups=shape.groups if rule.interleaved else 0,
        )
