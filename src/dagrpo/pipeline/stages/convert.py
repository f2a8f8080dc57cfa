"""Stage convert: Hugging Face layout to the trainer's format."""

from dagrpo.pipeline.declaration import RUN, Job, Needs, Stage


def work(job: Job) -> None:
    """Write the checkpoint that training starts from."""
    from dagrpo.checkpoints.compare import summary_lines
    from dagrpo.checkpoints.config import Checkpoint
    from dagrpo.checkpoints.convert import convert
    from dagrpo.utils import console

    source, folder = job.input("source").parent, job.output("manifest").parent
    manifest = convert(source, folder, job.section(Checkpoint, "checkpoint"))
    console.summary(f"convert: {source} to {manifest.format}", summary_lines(folder, manifest))


STAGE = Stage(
    name="convert",
    work=work,
    reads=("checkpoint",),
    inputs={"source": f"{RUN}/sft/manifest.json"},
    outputs={"manifest": f"{RUN}/initial/manifest.json", "provenance": f"{RUN}/initial/provenance.json"},
    label="seed {seed}",
    selects=("format", "model_format"),
    needs=lambda runtime: Needs(minutes_per_gb=5),
)
