"""Stage difficulty: the pass rate of every train problem under the policy that training starts from."""

from dagrpo.execution.declaration import Job, Needs, Stage
from dagrpo.params.runtime import Runtime


def work(job: Job) -> None:
    """Sample as training does, grade, and write the split with its pass rates; with 0 samples it passes through."""
    from dagrpo.console import summary
    from dagrpo.evaluation.difficulty import Grading, metrics_to_log, pass_through, rate
    from dagrpo.evaluation.sampling import SamplingRun
    from dagrpo.files import sha256_of
    from dagrpo.params.difficulty import Difficulty
    from dagrpo.params.evaluation import Sampling
    from dagrpo.params.rollout import Rollout

    difficulty = job.section(Difficulty, "difficulty")
    split = job.input("train")
    if difficulty.samples == 0:
        pass_through(split, job.output("train"), job.output("pass_rates"))
        summary("difficulty", [("problems", "not rated: difficulty.samples is 0")])
        return
    rollout = job.section(Rollout, "rollout")
    run = SamplingRun(
        model=job.input("model").parent,
        test_split=split,
        seed=0,
        sampling=Sampling(
            seed=difficulty.seed,
            samples=difficulty.samples,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_new_tokens=rollout.max_new_tokens,
        ),
        engine=job.runtime.engine,
        dtype=rollout.dtype,
        deterministic=rollout.deterministic,
        server_log=job.log.with_suffix(".server.log"),
        greedy=False,
        limit_key="rollout.max_new_tokens",
    )
    reward = job.params["reward"]
    grading = Grading(
        verifier=reward["verifier"], extractor=reward["extractor"], verify_seconds=reward["verify_seconds"]
    )
    job.run.log_dataset(split, f"{split.parent.name}/train", sha256_of(split), "difficulty")
    metrics = metrics_to_log(rate(run, grading, job.output("train"), job.output("pass_rates")))
    job.run.log_metrics(metrics)
    summary("difficulty", [(name.replace("_", " "), f"{value:.3f}") for name, value in metrics.items()])


def needs(runtime: Runtime) -> Needs:
    return Needs(threads=2, gpus=1, memory_mb=4000, memory_per_byte=3, minutes=720)


STAGE = Stage(
    name="difficulty",
    work=work,
    reads=("difficulty", "rollout", "reward.verifier", "reward.extractor", "reward.verify_seconds"),
    selects=("verifier",),
    needs=needs,
    restarts=1,
)
