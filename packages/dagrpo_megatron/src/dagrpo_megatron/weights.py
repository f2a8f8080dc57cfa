"""Plan of a model's weights as a `torch_dist` checkpoint.

The weights come in the Hugging Face layout.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo_megatron.config import Shape
from dagrpo_megatron.distcp_writer import DistcpPlan
from dagrpo_megatron.layout import LAYERS, Layout, Piece
from dagrpo_megatron.tensors import RELEASE, TRACKER

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
