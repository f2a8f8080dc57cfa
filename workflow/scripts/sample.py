"""Complete every problem of a test split with a checkpoint."""

from dagrpo.console import summary
from dagrpo.evaluation.sampling import SplitAttempts, evaluation_sampling, sample
from dagrpo.files import sha256_of, write_parquet
from dagrpo.params.evaluation import Sampling
from dagrpo.params.runtime import Engine
from dagrpo.stage import Stage, main

SHOWN = ["problem_index", "sample_index", "prompt", "completion", "ground_truth", "finish_reason"]


def work(stage: Stage) -> None:
    section = stage.section(Sampling, "evaluation.sampling")
    attempts = SplitAttempts(
        model=stage.input("model").parent,
        split=stage.input("test"),
        max_problems=section.max_problems,
        sampling=evaluation_sampling(section, deterministic=stage.params["rollout"]["deterministic"]),
        seeds=(section.seed, stage.seed or 0),
        engine=stage.section(Engine, "runtime.engine"),
        dtype=stage.params["rollout"]["dtype"],
        server_log=stage.log.with_suffix(".server.log"),
    )
    stage.run.log_dataset(attempts.split, attempts.split.parent.name, sha256_of(attempts.split), "evaluation")
    completions = sample(attempts)
    write_parquet(stage.output("completions"), completions)
    stage.run.log_metrics({"completions": completions.num_rows})
    stage.run.log_table("completions", completions.select(SHOWN))
    split = stage.input("test")
    stage.run.log_dataset(split, f"{split.parent.name}/test", sha256_of(split), "evaluation")
    summary("sample", [("completions", f"{completions.num_rows:,}"), ("file", str(stage.output("completions")))])


if __name__ == "__main__":
    main("sample", work)
