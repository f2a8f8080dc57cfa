"""Stage sft: supervised fine-tuning on the train split's own answers, before GRPO."""

from collections.abc import Mapping

from dagrpo.execution.declaration import Job, Needs, Stage
from dagrpo.params.runtime import Runtime


def work(job: Job) -> None:
    """Fine-tune the model; with 0 steps it passes through unchanged."""
    from dagrpo.console import summary
    from dagrpo.params.sft import Sft
    from dagrpo.trainer.sft import fine_tune

    params = job.section(Sft, "sft")
    last: dict[str, float] = {}

    def report(step: int, metrics: Mapping[str, float]) -> None:
        last.update(metrics)
        job.run.log_metrics(metrics, step)

    source, destination = job.input("model").parent, job.output("manifest").parent
    fine_tune(source, job.input("train"), destination, params, job.own_seed, report)
    loss = f"{last['loss']:.4f}" if last else "none: sft.steps is 0, the model passes through"
    summary(f"sft, seed {job.seed}", [("steps", str(params.steps)), ("last loss", loss)])


def needs(runtime: Runtime) -> Needs:
    return Needs(threads=2, gpus=1, memory_mb=4000, memory_per_byte=10, minutes=1440)


STAGE = Stage(name="sft", work=work, reads=("sft",), extends=("sft.steps",), needs=needs, restarts=3)
