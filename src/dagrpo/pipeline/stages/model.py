"""Stage model: the policy before any training."""

from dagrpo.config.places import here
from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import MODEL, RAW, Job, Needs, Params, Stage, Wildcards


def work(job: Job) -> None:
    """Make models/<experiment>/<name>/ from the source that the parameters name."""
    from dagrpo.checkpoints.compare import summary_lines
    from dagrpo.models.config import Model
    from dagrpo.models.make import make_model
    from dagrpo.utils import console

    params = job.section(Model, "model")
    folder = job.output("manifest").parent
    manifest = make_model(folder, params)
    console.summary(f"model: {params.name} from {params.source}", summary_lines(folder, manifest))


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """Return the GGUF file that the policy is read from; [] from any other source, or if its package is not installed."""
    from dagrpo.models.config import place_of_gguf

    if params.model.gguf is None:
        return []
    try:
        return [str(here(place_of_gguf(params.model.gguf)))]
    except UserError:  # what a finished job has read may be gone; one that has yet to run says so
        return []


STAGE = Stage(
    name="model",
    work=work,
    reads=("model",),
    inputs={RAW: raw},
    outputs={"manifest": MODEL, "provenance": "models/{experiment}/{model}/provenance.json"},
    label="{model}",
    selects=("fresh_tool",),
    needs=lambda runtime: Needs(memory_mb=4000, minutes=240),
)
