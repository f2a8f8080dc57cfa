"""Command `dagrpo warm`: compile the kernels of an experiment's server."""

from pathlib import Path

from dagrpo.cli.shared import PARAMS
from dagrpo.config.project import require_own_code
from dagrpo.config.schema import Params, read_params
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest

REQUEST = SamplingRequest(input_ids=(1, 2, 3, 4), seed=0, temperature=1.0, top_p=0.9, top_k=20, max_new_tokens=4)


def warm() -> None:
    """Compile the kernels that the server of params.yaml's experiment needs, once per GPU type; later starts reuse them."""
    import torch

    from dagrpo.utils.devices import own_devices

    require_own_code()
    params = read_params(PARAMS)
    if not torch.cuda.is_available():
        raise UserError("There is nothing to compile: torch sees no GPU here. `dagrpo doctor` says what one needs.")
    if params.runtime.engine.servers:
        raise UserError("There is nothing to compile: runtime.engine.servers run elsewhere.")
    model = Path("models", params.experiment.name, params.model.name)
    if not (model / "config.json").is_file():
        raise UserError(f"{model} is not there yet: make it with `snakemake --cores all {model}/manifest.json`.")
    with own_devices(params.runtime.engine.tensor_parallel):  # those of one server, which no run holds
        _sample_once(model, params)


def _sample_once(model: Path, params: Params) -> None:
    """Start the server with the model and parameters of the stage train, and sample a few tokens, so that late kernels compile too.

    With training.lora the server of the stage train also computes an adapter, whose kernels are compiled when that stage starts.
    """
    from dagrpo.engine import open_engine

    rollout = params.rollout
    with open_engine(
        model,
        params.runtime.engine.model_copy(update={"replicas": 1, "own_gpus": False}),
        Path("logs") / f"{params.experiment.name}.warm.server.log",
        dtype=rollout.dtype,
        head_dtype=rollout.head_dtype,
        deterministic=rollout.deterministic,
        keep_pictures=params.training.vision == "frozen",
    ) as engine:
        engine.generate([REQUEST], lockstep=rollout.deterministic)
