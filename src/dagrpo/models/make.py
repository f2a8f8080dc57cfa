"""Build a model folder and its manifest from section `model`."""

from pathlib import Path

from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.models.config import Model


def make_model(destination: Path, params: Model) -> Manifest:
    """Write the folder that `params` asks for, in the Hugging Face layout, atomically. Each source takes seconds to import."""
    dtype = NAMED_DTYPES[params.dtype]
    match params.source:
        case "fresh":
            from dagrpo.models.fresh import make_fresh

            return make_fresh(destination, params.fresh, dtype, params.max_pixels)
        case "gguf":
            from dagrpo.models.gguf import make_gguf

            assert params.gguf is not None  # the schema asks for it
            return make_gguf(destination, params.gguf, dtype, params.chat_template)
        case "hub":
            from dagrpo.models.hub import make_hub

            assert params.repository is not None
            assert params.revision is not None
            return make_hub(
                destination,
                params.repository,
                params.revision,
                dtype,
                max_pixels=params.max_pixels,
                chat_template=params.chat_template,
            )
