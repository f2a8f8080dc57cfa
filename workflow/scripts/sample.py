"""Complete every problem of a test split with a checkpoint."""

from dagrpo.console import summary
from dagrpo.evaluation.sampling import SamplingRun, sample
from dagrpo.files import sha256_of, write_parquet
from dagrpo.params.evaluation import Sampling
from dagrpo.params.runtime import Engine
from dagrpo.stage import Stage, main

SHOWN = ["problem_index", "sample_index", "prompt", "completion", "ground_truth", "finish_reason"]


def work(stage: Stage) -> None:
    run = SamplingRun(
        model=stage.input("model").parent,
        test_split=stage.input("test"),
        seed=stage.seed or 0,
        sampling=stage.section(Sampling, "evaluation.sampling"),
        engine=stage.section(Engine, "runtime.engine"),
        dtype=stage.params["rollout"]["dtype"],
        deterministic=stage.params["rollout"]["deterministic"],
        server_log=stage.log.with_suffix(".server.log"),
    )
    split = run.test_split
    stage.run.log_dataset(split, f"{split.parent.name}/test", sha256_of(split), "evaluation")
    completions = sample(run)
    write_parquet(stage.output("completions"), completions)
    stage.run.log_metrics({"completions": completions.num_rows})
    stage.run.log_table("completions", completions.select(SHOWN))
    summary("sample", [("completions", f"{completions.num_rows:,}"), ("file", str(stage.output("completions")))])


if __name__ == "__main__":
    main("sample", work)
