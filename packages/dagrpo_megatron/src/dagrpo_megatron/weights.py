"""Weights of a `torch_dist` checkpoint, written and read.

They come in the Hugging Face layout, and are read under its names, one at a time.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.tensors import Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo_megatron.config import Shape
from dagrpo_megatron.distcp_reader import DistcpReader
from dagrpo_megatron.distcp_writer import DistcpPlan
from dagrpo_megatron.layout import LAYERS, Layout, Piece, Sizes

TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
_OF_TRAINING = ("optimizer", "chained_", "rng_state", "rerun_state_machine", "opt_param_scheduler")
# What Transformer Engine's and Megatron's own modules of a layer ask for beside their weights. A loader that misses one
# stops, and ignores those that it has no module for.
_MODULES = (
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "self_attention.core_attention",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "input_layernorm",
    "pre_mlp_layernorm",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)


def planned_weights(tensors: Tensors, layout: Layout, max_file_bytes: int) -> list[PlannedFile]:
    """Return the files of the folder that `--load` takes.

    Raises UserError if a tensor is missing, left over, or of another shape or type.
    """
    require_the_same_tensors(tensors, layout)
    plan = DistcpPlan(RELEASE, max_file_bytes)
    for piece in layout.pieces:
        plan.add(piece, tensors.specs[piece.names[0]].dtype, partial(_joined, piece, tensors))
    plan.add_absent_objects(_extra_states(layout.shape))
    return [*plan.files(), planned_content(TRACKER, f"{RELEASE}\n".encode())]


def _joined(piece: Piece, tensors: Tensors) -> Tensor:
    return piece.join([tensors.read(name) for name in piece.names])


def require_the_same_tensors(tensors: Tensors, layout: Layout) -> None:
    """Refuse weights that are not exactly those of the layout."""
    model = f"a {layout.family.name} model with this config.json"
    for name in sorted(tensors.specs.keys() - layout.names.keys()):
        raise UserError(
            f"the tensor {name} has no place in {model}: remove it from the checkpoint, or correct the config."
        )
    for piece in layout.pieces:
        for name, shape in zip(piece.names, piece.shapes, strict=True):
            _require_tensor(tensors, piece, name, shape, model)


def _require_tensor(tensors: Tensors, piece: Piece, name: str, shape: tuple[int, ...], model: str) -> None:
    spec = tensors.specs.get(name)
    if spec is None:
        raise UserError(f"the tensor {name} of {model} is missing: copy or make that checkpoint again.")
    if spec.shape != shape:
        raise UserError(
            f"the tensor {name} has the shape {list(spec.shape)}, but {model} has it as {list(shape)}: "
            "its config.json and its weights do not belong together."
        )
    first = tensors.specs[piece.names[0]].dtype
    if spec.dtype != first:
        raise UserError(
            f"the tensor {name} is in {spec.dtype} and {piece.names[0]} in {first}, but Megatron keeps both in one: "
            "convert the checkpoint to one type first."
        )


def _extra_states(shape: Shape) -> Iterator[str]:
    yield "decoder.final_layernorm._extra_state/shard_0_1"
    for number in range(shape.layers):
        for module in _MODULES:
            yield f"{LAYERS}{module}._extra_state/shard_{number}_{shape.layers}"
        for expert in range(shape.experts):
            for part in ("linear_fc1", "linear_fc2"):
                place = f"shard_{number}.{expert}_{shape.layers}.{shape.experts}"
                yield f"{LAYERS}mlp.experts.experts.{part}._extra_state/{place}"


def weights_folder(folder: Path) -> Path:
    """Return the folder with the `.distcp` files: the given one, or the one of the iteration that its tracker names."""
    if (folder / ".metadata").is_file():
        return folder
    try:
        iteration = (folder / TRACKER).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise UserError(f"{folder} has neither .metadata nor {TRACKER}: it is not a torch_dist checkpoint.") from None
    if iteration != RELEASE and not iteration.isdigit():
        raise UserError(f"{folder / TRACKER} holds {iteration!r}, not an iteration: correct it.")
    return folder / (RELEASE if iteration == RELEASE else f"iter_{int(iteration):07d}")


class MegatronTensors:
    """Weights of a `torch_dist` checkpoint with a known layout. Optimizer and random states are ignored.

    Rows of the vocabulary that Megatron added for its padding are cut off; rows that it does not hold are those of
    `base`. Raises UserError if a tensor is missing, left over, or of another shape than the layout says, or if rows are missing
    and there is no base.
    """

    def __init__(self, folder: Path, layout: Layout, base: Tensors | None = None) -> None:
        self._folder = weights_folder(folder)
        self._reader = DistcpReader(self._folder)
        self._base = base
        self._pieces = layout.names
        self._places = {piece: self._place(piece) for piece in layout.pieces}
        self._require_all_used()
        self.specs = {
            name: TensorSpec(dtype=self._reader.specs[self._places[piece][0]].dtype, shape=shape)
            for piece in layout.pieces
            for name, shape in zip(piece.names, piece.shapes, strict=True)
        }

    def read(self, name: str) -> Tensor:
        piece = self._pieces[name]
        return piece.part(self._box(piece), name)

    def _box(self, piece: Piece) -> Tensor:
        key, offsets, sizes = self._places[piece]
        held = self._reader.specs[key].shape[0]
        if not piece.is_vocabulary or held >= sizes[0]:
            return self._reader.read(key, offsets, sizes)
        assert self._base is not None  # the constructor asks for it
        rows = self._reader.read(key, offsets, (held, *sizes[1:]))
        return torch.cat([rows, self._base.read(piece.names[0])[held:]])

    def _place(self, piece: Piece) -> tuple[str, Sizes, Sizes]:
        """Return key, offsets and sizes of a piece in this folder. Megatron stacks layers, or stores each under its number."""
        for key in (piece.key, *piece.also_known_as):
            if key in self._reader.specs:
                self._require_shape(piece, key, piece.size)
                return key, piece.offsets, piece.sizes
            alone = key.replace(LAYERS, f"{LAYERS}{piece.layer}.", 1)
            if alone in self._reader.specs:
                self._require_shape(piece, alone, piece.size[1:])
                return alone, piece.offsets[1:], piece.sizes[1:]
        raise UserError(
            f"{self._folder} lacks the tensor {piece.key}, which config.json asks for ({piece.names[0]}): "
            "use the config.json of the model that was trained."
        )

    def _require_shape(self, piece: Piece, key: str, expected: Sizes) -> None:
        held = self._reader.specs[key].shape
        if piece.is_vocabulary and held[1:] == expected[1:]:
            return self._require_rows(piece, key, held[0], expected[0])
        if held != expected:
            raise UserError(
                f"{self._folder} holds {key} in the shape {list(held)}, but config.json asks for {list(expected)}: "
                "use the config.json of the model that was trained."
            )
        return None

    def _require_rows(self, piece: Piece, key: str, held: int, expected: int) -> None:
        if held >= expected:
            return
        if self._base is None:
            raise UserError(
                f"{self._folder} holds {held:,} of the {expected:,} rows of {key} (its padded vocabulary is smaller): "
                "give the model that training began with as the base, its rows are taken."
            )
        base, ours = self._base.specs.get(piece.names[0]), self._reader.specs[key]
        if base is None or base.shape != piece.shapes[0] or base.dtype != ours.dtype:
            raise UserError(
                f"the base has no {piece.names[0]} of shape {list(piece.shapes[0])} in {ours.dtype} to take rows from: "
                "give the model that training began with."
            )

    def _require_all_used(self) -> None:
        used = {key for key, _, _ in self._places.values()}
        for key in sorted(self._reader.specs):
            if key not in used and not key.startswith(_OF_TRAINING):
                raise UserError(
                    f"{self._folder} holds the tensor {key}, which the architecture of config.json does not have: "
                    "use the config.json of the model that was trained."
                )
