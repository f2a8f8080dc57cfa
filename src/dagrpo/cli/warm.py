"""Command `dagrpo warm`."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

PARAMS = Path("params.yaml")
MODELS = Path("models")


def warm() -> None:
    """Compile the kernels that the server of params.yaml's experiment needs, once per GPU type; later starts reuse them."""
    import torch

    from dagrpo.config.project import require_own_code
    from dagrpo.config.schema import read_params
    from dagrpo.core.errors import UserError
    from dagrpo.utils.devices import own_devices

    require_own_code()
    params = read_params(PARAMS)
    if not torch.cuda.is_available():
        raise UserError("There is nothing to compile: torch sees no GPU here. `dagrpo doctor` says what one needs.")
    if params.runtime.engine.servers:
        raise UserError("There is nothing to compile: runtime.engine.servers run elsewhere.")
    with own_devices(params.runtime.engine.tensor_parallel):  # those of one server, which no run holds
        sample_once(model_of(params), params, Path("logs") / f"{params.experiment.name}.warm.server.log")


def model_of(params: "Params") -> Path:
    """Return the folder of the experiment's model. Raises UserError if the stage model has not run."""
    from dagrpo.core.errors import UserError

    folder = MODELS / params.experiment.name / params.model.name
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not there yet: make it with `snakemake --cores all {folder}/manifest.json`.")
    return folder


def sample_once(model: Path, params: "Params", log: Path) -> None:
    """Start the server with the model and parameters of the stage train, and sample a few tokens, so that late kernels compile too.

    With training.lora the server of the stage train also computes an adapter, whose kernels are compiled when that stage starts. Raises the
    errors of `open_engine`.
    """
    from dagrpo.core.types import SamplingRequest
    from dagrpo.engine import open_engine

    rollout, vision_stays = params.rollout, params.training.vision == "frozen"
    request = SamplingRequest(input_ids=(1, 2, 3, 4), seed=0, temperature=1.0, top_p=0.9, top_k=20, max_new_tokens=4)
    with open_engine(
        model,
        params.runtime.engine.model_copy(update={"replicas": 1, "own_gpus": False}),
        log,
        dtype=rollout.dtype,
        head_dtype=rollout.head_dtype,
        deterministic=rollout.deterministic,
        keep_pictures=vision_stays,
    ) as engine:
        engine.generate([request], lockstep=rollout.deterministic)
