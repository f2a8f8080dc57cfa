"""Stage model: the policy before any training."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.pipeline.declaration import MODEL, Job, Needs, Stage
from dagrpo.trainer.config.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.config.schema import Params


def work(job: Job) -> None:
    """Make models/<experiment>/<name>/ from the source that the parameters name."""
    from dagrpo.checkpoints import facts
    from dagrpo.models.config import Model
    from dagrpo.models.make import make_model
    from dagrpo.utils import console

    params = job.section(Model, "model")
    folder = job.output("manifest").parent
    manifest = make_model(folder, params)
    console.summary(f"model: {params.name} from {params.source}", facts.lines(folder, manifest))


def raw(params: "Params", experiment: str) -> list[str]:
    """Return the GGUF file that the policy is read from; [] from any other source, an installed package included."""
    gguf = params.model.gguf
    return [gguf] if params.model.source == "gguf" and gguf is not None and Path(gguf).is_file() else []


def needs(runtime: Runtime) -> Needs:
    return Needs(memory_mb=4000, minutes=240)


def reusable(params: Mapping[str, Any]) -> bool:
    """Return False if it reads a file of this machine, which may have changed."""
    return bool(params["model"]["source"] != "gguf")


STAGE = Stage(
    name="model",
    work=work,
    reads=("model",),
    inputs={"raw": raw},
    outputs={"manifest": MODEL, "provenance": "models/{experiment}/{model}/provenance.json"},
    label="{model}",
    selects=("fresh_tool",),
    needs=needs,
    reusable=reusable,
)
