"""Stage teacher: models/<experiment>/teacher/, whose logprobs distillation learns from."""

from pathlib import Path

from dagrpo.pipeline.declaration import MODEL, RAW, Job, Needs, Params, Stage, Wildcards
from dagrpo.utils.manifest import MANIFEST

OWN_KEYS = ("source", "folder", "repository", "revision", "dtype")  # what the teacher reads is the stage train's


def work(job: Job) -> None:
    """Fetch or link the teacher, and refuse one with another vocabulary; without a teacher, write a folder that records so."""
    from dagrpo.algorithms.teacher_config import Teacher
    from dagrpo.models.make import make_teacher
    from dagrpo.utils.console import summary

    params = job.section(Teacher, "algorithm.teacher")
    lines = make_teacher(
        job.output("manifest").parent,
        params,
        source=None if params.folder is None else Path(params.folder),
        student=job.input("model").parent,
        max_pixels=job.params["model"]["max_pixels"],
    )
    summary(f"teacher: {params.source}", lines)


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """Return the manifest of the checkpoint that algorithm.teacher names; [] if it names none."""
    folder = params.algorithm.teacher.folder
    return [] if folder is None else [str(Path(folder, MANIFEST))]


STAGE = Stage(
    name="teacher",
    work=work,
    reads=(*(f"algorithm.teacher.{key}" for key in OWN_KEYS), "model.max_pixels"),
    inputs={"model": MODEL, RAW: raw},
    outputs={
        "manifest": "models/{experiment}/teacher/manifest.json",
        "provenance": "models/{experiment}/teacher/provenance.json",
    },
    selects=("model_format",),
    needs=lambda runtime: Needs(memory_mb=4000, minutes=240),
)
