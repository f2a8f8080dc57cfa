"""Stage export: the trained policy to the Hugging Face layout."""

from dagrpo.pipeline.declaration import RUN, Job, Needs, Stage


def work(job: Job) -> None:
    """Write the trained policy in the layout that other programs load."""
    from dagrpo.checkpoints.compare import summary_lines
    from dagrpo.checkpoints.config import Checkpoint
    from dagrpo.checkpoints.convert import export
    from dagrpo.utils import console

    policy, folder = job.input("policy").parent, job.output("manifest").parent
    manifest = export(policy, folder, job.section(Checkpoint, "checkpoint"))
    console.summary(f"export: {policy} to {manifest.format}", summary_lines(folder, manifest))


STAGE = Stage(
    name="export",
    work=work,
    reads=("checkpoint",),
    inputs={"policy": f"{RUN}/policy/manifest.json"},
    outputs={"manifest": f"{RUN}/exported/manifest.json", "provenance": f"{RUN}/exported/provenance.json"},
    label="seed {seed}",
    selects=("format", "model_format"),
    needs=lambda runtime: Needs(minutes_per_gb=5),
)
