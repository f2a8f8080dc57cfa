"""Section `model`: the policy before any training.

Read by the model stage.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.teacher_config import TEACHER
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Name
from dagrpo.core.section import MOST_PIXELS, MOST_TOKENS, Section, Seed, Texts, require_commit
from dagrpo.tools import TOOLS

if TYPE_CHECKING:
    from dagrpo.utils.hub import Wanted

FRESH_TOKENS = 64  # of a picture of full size, where model.max_pixels is null
PACKAGE = "package:"  # of model.gguf
MERGED = 2  # patches a side that make one token, in every family here
OWN_TEMPLATE = "own"  # the model keeps its chat template
TEMPLATE_FAMILIES: Mapping[str, str] = {
    "qwen2_5_vl_tools": "qwen2_5_vl",
    "smollm2_tools": "llama",
}  # one of dagrpo's templates -> the model_type that it is for
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]  # as OpenAI's protocol has it

POLICY_SECTION = "model"  # the section of params.yaml that names a policy's repository
TEACHER_SECTION = "algorithm.teacher"
INSTEAD = {
    POLICY_SECTION: "set model.source to gguf and model.gguf to a file of this machine",
    TEACHER_SECTION: "set algorithm.teacher.source to folder and algorithm.teacher.folder to a checkpoint of this machine",
}


def place_of_gguf(location: str) -> Path:
    """Return the path that `model.gguf` names; a file inside an installed package is found without running the package's code."""
    if not location.startswith(PACKAGE):
        return Path(location)
    module, _, file = location.removeprefix(PACKAGE).partition("/")
    if not module.isidentifier() or not file or ".." in Path(file).parts:
        raise UserError(f"model.gguf is {location}: write package:<module>/<file> with a top-level module.")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"model.gguf is {location}, but no package {module} is installed: pip install it.")
    return Path(spec.submodule_search_locations[0]) / file


def smallest_picture(patch_size: int) -> int:
    """Return the pixels of a picture of one token."""
    return (MERGED * patch_size) ** 2


class Vision(Section):
    family: Literal["none", "qwen2_5_vl", "qwen3_vl"] = Field(
        "none", description="none: a text-only Qwen2; otherwise a small vision-language model of that family."
    )
    depth: Annotated[int, Field(ge=1, le=1000)] = Field(4, description="Number of the vision tower's layers.")
    hidden_size: Annotated[int, Field(ge=8, le=65_536)] = Field(
        64, description="Width of the vision tower; a multiple of 4 * num_heads."
    )
    intermediate_size: Annotated[int, Field(ge=8, le=1_000_000)] = Field(128, description="Width of the tower's MLP.")
    num_heads: Annotated[int, Field(ge=1, le=1024)] = Field(4, description="Attention heads of the tower.")
    patch_size: Annotated[int, Field(ge=2, le=64)] = Field(
        14, description="Side of a patch, in pixels; a square of four patches makes one token."
    )

    @model_validator(mode="after")
    def _heads_have_two_axes(self) -> Self:
        if self.hidden_size % (4 * self.num_heads):
            raise UserError(
                f"model.fresh.vision.hidden_size ({self.hidden_size}) is not a multiple of 4 * num_heads "
                f"({4 * self.num_heads}), which positions in two dimensions need: change one of them"
            )
        return self


class Fresh(Section):
    seed: Seed = Field(0, description="Seed of the initial weights.")
    hidden_size: Annotated[int, Field(ge=8, le=65_536)] = Field(
        128, description="Width; a multiple of num_attention_heads."
    )
    num_hidden_layers: Annotated[int, Field(ge=1, le=1000)] = Field(4, description="Number of transformer layers.")
    num_attention_heads: Annotated[int, Field(ge=1, le=1024)] = Field(4, description="Query heads.")
    num_key_value_heads: Annotated[int, Field(ge=1, le=1024)] = Field(
        2, description="Key and value heads; divides num_attention_heads."
    )
    intermediate_size: Annotated[int, Field(ge=8, le=1_000_000)] = Field(384, description="Width of the MLP.")
    max_position_embeddings: Annotated[int, Field(ge=32, le=MOST_TOKENS)] = Field(
        256, description="Longest prompt plus completion, in tokens."
    )
    tools: Texts = Field(
        [], description="Tools whose calls the tokenizer writes with two tokens beside those of the argument."
    )
    calls: Annotated[dict[FunctionName, FunctionName], Field(max_length=1000)] = Field(
        {},
        description="Other functions whose calls the tokenizer writes so, such as those of an environment: function -> its text argument.",
    )
    vision: Vision = Field(Vision(), description="Shape of the vision tower.")

    @property
    def takes_pictures(self) -> bool:
        """Return True if the model has a vision tower."""
        return self.vision.family != "none"

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"model.fresh.hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({self.num_attention_heads}): change one of them"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise UserError(
                f"model.fresh.num_key_value_heads ({self.num_key_value_heads}) does not divide num_attention_heads "
                f"({self.num_attention_heads}): change one of them"
            )
        return self

    @model_validator(mode="after")
    def _heads_have_three_axes(self) -> Self:
        width = self.hidden_size // self.num_attention_heads
        if self.takes_pictures and (width < 8 or width % 2):
            raise UserError(
                f"model.fresh.hidden_size / num_attention_heads is {width}, but positions in pictures need an even width of at "
                "least 8: change one of them, or set model.fresh.vision.family to none"
            )
        return self

    @model_validator(mode="after")
    def _tools_are_known(self) -> Self:
        for name in self.tools:
            try:
                TOOLS.get(name)
            except UserError as error:
                raise UserError(str(error).replace(TOOLS.key, "model.fresh.tools")) from None
        return self


class Model(Section):
    name: Name = Field("tiny_qwen2", description="Name of the folder models/<experiment>/<name>.")
    source: Literal["fresh", "gguf", "hub"] = Field(
        "fresh",
        description="fresh: a randomly initialised tiny Qwen2 with a character tokenizer; gguf: a GGUF file; hub: a Hugging Face model.",
    )
    fresh: Fresh = Field(Fresh(), description="Shape of a fresh model (source: fresh).")
    gguf: str | None = Field(
        None,
        description="Path of a GGUF file, or package:<module>/<file> for one inside an installed package (source: gguf).",
    )
    repository: str | None = Field(
        None, description="Hub repository, such as Qwen/Qwen2.5-0.5B-Instruct (source: hub)."
    )
    revision: str | None = Field(
        None, description="Commit of that repository, 40 hex digits: a branch can move (source: hub)."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of the weights in their file.")
    max_pixels: Annotated[int, Field(ge=16, le=MOST_PIXELS)] | None = Field(
        None,
        description="Most pixels of a picture; a larger one is scaled down. null: the limit of the model (fresh: 64 tokens).",
    )

    chat_template: Literal["own", "qwen2_5_vl_tools", "smollm2_tools"] = Field(
        "own",
        description="own: the model's; the others: that of Qwen2.5-VL or SmolLM2 with a description of tools (source: hub, gguf).",
    )

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise UserError if the checkpoint's format cannot hold the model."""
        if checkpoint.format not in FORMATS.own_names():  # dagrpo's own, whose import takes seconds, hold all models
            FORMATS.get(checkpoint.format).check(takes_pictures=self.source == "fresh" and self.fresh.takes_pictures)

    @model_validator(mode="after")
    def _name_is_not_the_teachers(self) -> Self:
        if self.name == TEACHER:
            raise UserError(f"model.name is {TEACHER}, the folder of algorithm.teacher: give the model another name")
        return self

    @model_validator(mode="after")
    def _chat_template_is_of_a_published_model(self) -> Self:
        if self.chat_template != OWN_TEMPLATE and self.source == "fresh":
            raise UserError(
                f"model.chat_template is {self.chat_template}, which is for a published model, and model.source is fresh: set "
                "model.chat_template to own"
            )
        return self

    @model_validator(mode="after")
    def _max_pixels_is_of_a_model_with_pictures(self) -> Self:
        if self.max_pixels is None:
            return self
        if not self.may_take_pictures:
            raise UserError(
                f"model.max_pixels is {self.max_pixels}, but the model takes no pictures: set it to null, or choose a "
                "vision-language model (model.fresh.vision.family, or one of the hub)"
            )
        least = smallest_picture(self.fresh.vision.patch_size)
        if self.source == "fresh" and self.max_pixels < least:
            raise UserError(
                f"model.max_pixels is {self.max_pixels}, less than the {least} pixels of a picture of one token: raise it, or "
                "lower model.fresh.vision.patch_size"
            )
        return self

    @property
    def may_take_pictures(self) -> bool:
        """Return True if the model has a vision tower, or this is unknown until the hub is asked."""
        return self.source == "hub" or (self.source == "fresh" and self.fresh.takes_pictures)

    @property
    def full_picture_tokens(self) -> int | None:
        """Return the tokens of a picture of full size; None for a model without pictures, or if the parameters do not determine it.

        A picture far longer than wide may take more, since its shorter side has at least one token.
        """
        if self.source != "fresh" or not self.fresh.takes_pictures:
            return None
        return (
            FRESH_TOKENS
            if self.max_pixels is None
            else self.max_pixels // smallest_picture(self.fresh.vision.patch_size)
        )

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> Self:
        if self.source == "gguf" and self.gguf is None:
            raise UserError("model.source is gguf but model.gguf is null: give the path of the GGUF file")
        if self.source == "hub" and (self.repository is None or self.revision is None):
            raise UserError("model.source is hub but model.repository or model.revision is null: give both")
        require_commit(self.revision, "model.revision")
        unused = [
            k
            for k, s in (("gguf", "gguf"), ("repository", "hub"), ("revision", "hub"))
            if getattr(self, k) and self.source != s
        ]
        if unused:
            raise UserError(
                f"model.{unused[0]} is given but model.source is {self.source}, which does not read it: set it to null"
            )
        return self


def wanted_model(repository: str, revision: str, section: str) -> "Wanted":
    """Return the request for a model that `section` of params.yaml names."""
    from dagrpo.utils.hub import Wanted

    return Wanted(
        repository=repository,
        revision=revision,
        kind="model",
        correct=f"correct {section}.repository and {section}.revision",
        instead=INSTEAD[section],
    )
