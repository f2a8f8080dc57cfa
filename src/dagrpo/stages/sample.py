"""Stage sample: a checkpoint completes every problem of a test split."""

from dagrpo.execution.declaration import Job, Needs, Stage
from dagrpo.params.runtime import Runtime

SHOWN = ["problem_index", "sample_index", "prompt", "completion", "ground_truth", "finish_reason"]


def work(job: Job) -> None:
    """Write completions.parquet; nothing is graded here."""
    from dagrpo.console import summary
    from dagrpo.evaluation.sampling import SamplingRun, sample
    from dagrpo.files import sha256_of, write_parquet
    from dagrpo.params.evaluation import Sampling

    run = SamplingRun(
        model=job.input("model").parent,
        test_split=job.input("test"),
        seed=job.own_seed,
        sampling=job.section(Sampling, "evaluation.sampling"),
        engine=job.runtime.engine,
        dtype=job.params["rollout"]["dtype"],
        deterministic=job.params["rollout"]["deterministic"],
        server_log=job.log.with_suffix(".server.log"),
    )
    split = job.input("test")
    job.run.log_dataset(split, f"{split.parent.name}/test", sha256_of(split), "evaluation")
    completions = sample(run)
    write_parquet(job.output("completions"), completions)
    job.run.log_metrics({"completions": completions.num_rows})
    job.run.log_table("completions", completions.select(SHOWN))
    summary("sample", [("completions", f"{completions.num_rows:,}"), ("file", str(job.output("completions")))])


def needs(runtime: Runtime) -> Needs:
    return Needs(gpus=1, memory_mb=4000, memory_per_byte=3, minutes=720)


STAGE = Stage(
    name="sample",
    work=work,
    reads=("evaluation.sampling", "rollout.dtype", "rollout.deterministic"),
    needs=needs,
    restarts=1,
)
