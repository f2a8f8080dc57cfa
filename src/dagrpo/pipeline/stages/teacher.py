"""Stage teacher: models/<experiment>/teacher/, whose logprobs distillation learns from."""

from dagrpo.pipeline.declaration import Job, Needs, Stage
from dagrpo.trainer.runtime_config import Runtime

OWN_KEYS = ("source", "folder", "repository", "revision", "dtype")  # what the teacher reads is the stage train's


def work(job: Job) -> None:
    """Fetch or link the teacher, and refuse one with another vocabulary; without a teacher, write a folder that records so."""
    from dagrpo.algorithms.teacher_config import Teacher
    from dagrpo.models.teacher import make_teacher
    from dagrpo.utils.console import summary

    params = job.section(Teacher, "algorithm.teacher")
    source = job.inputs.get("source", ())
    lines = make_teacher(
        job.output("manifest").parent,
        params,
        source=source[0].parent if source else None,
        student=job.input("model").parent,
        max_pixels=job.params["model"]["max_pixels"],
    )
    summary(f"teacher: {params.source}", lines)


def needs(runtime: Runtime) -> Needs:
    return Needs(memory_mb=4000)


STAGE = Stage(
    name="teacher",
    work=work,
    reads=(*(f"algorithm.teacher.{key}" for key in OWN_KEYS), "model.max_pixels"),
    selects=("model_format",),
    needs=needs,
)
