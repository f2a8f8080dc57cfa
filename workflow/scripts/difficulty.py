"""Rate the train problems by the pass rate of the policy that training starts from."""

from dagrpo.console import summary
from dagrpo.evaluation.difficulty import Grading, Rating, pass_through, rate
from dagrpo.evaluation.sampling import SamplingRun
from dagrpo.files import sha256_of
from dagrpo.params.difficulty import Difficulty
from dagrpo.params.evaluation import Sampling
from dagrpo.params.rollout import Rollout
from dagrpo.params.runtime import Engine
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    difficulty = stage.section(Difficulty, "difficulty")
    split = stage.input("train")
    if difficulty.samples == 0:
        pass_through(split, stage.output("train"), stage.output("pass_rates"))
        summary("difficulty", [("problems", "not rated: difficulty.samples is 0")])
        return
    stage.run.log_dataset(split, f"{split.parent.name}/train", sha256_of(split), "difficulty")
    ratings = rate(_sampling(stage, difficulty), _grading(stage), stage.output("train"), stage.output("pass_rates"))
    stage.run.log_metrics(_metrics(ratings))
    summary("difficulty", [(name.replace("_", " "), f"{value:.3f}") for name, value in _metrics(ratings).items()])


def _sampling(stage: Stage, difficulty: Difficulty) -> SamplingRun:
    """As in training: same temperature, same limits, k completions and no greedy one."""
    rollout = stage.section(Rollout, "rollout")
    return SamplingRun(
        model=stage.input("model").parent,
        test_split=stage.input("train"),
        seed=0,
        sampling=Sampling(
            seed=difficulty.seed,
            samples=difficulty.samples,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_new_tokens=rollout.max_new_tokens,
        ),
        engine=stage.section(Engine, "runtime.engine"),
        dtype=rollout.dtype,
        deterministic=rollout.deterministic,
        server_log=stage.log.with_suffix(".server.log"),
        greedy=False,
        limit_key="rollout.max_new_tokens",
    )


def _grading(stage: Stage) -> Grading:
    reward = stage.params["reward"]
    return Grading(verifier=reward["verifier"], extractor=reward["extractor"], verify_seconds=reward["verify_seconds"])


def _metrics(ratings: list[Rating]) -> dict[str, float]:
    known = [rating.pass_rate for rating in ratings if rating.pass_rate is not None]
    return {
        "mean_pass_rate": sum(known) / len(known) if known else 0.0,
        "never_solved_fraction": sum(rate == 0 for rate in known) / len(ratings),
        "always_solved_fraction": sum(rate == 1 for rate in known) / len(ratings),
        "unverifiable_completions": float(sum(rating.unverifiable for rating in ratings)),
    }


if __name__ == "__main__":
    main("difficulty", work)
