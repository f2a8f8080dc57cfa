"""Rate the train problems by the pass rate of the policy that training starts from."""

from dagrpo.console import summary
from dagrpo.evaluation.difficulty import Rating, pass_through, rate
from dagrpo.evaluation.sampling import SplitAttempts
from dagrpo.files import sha256_of
from dagrpo.params.difficulty import Difficulty
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.runtime import Engine
from dagrpo.rollout.sampling import training_sampling
from dagrpo.stage import Stage, main


def work(stage: Stage) -> None:
    difficulty = stage.section(Difficulty, "difficulty")
    split = stage.input("train")
    if difficulty.samples == 0:
        pass_through(split, stage.output("train"), stage.output("pass_rates"))
        summary("difficulty", [("problems", "not rated: difficulty.samples is 0")])
        return
    stage.run.log_dataset(split, f"{split.parent.name}/train", sha256_of(split), "difficulty")
    ratings = rate(
        _attempts(stage, difficulty), stage.section(Reward, "reward"), stage.output("train"), stage.output("pass_rates")
    )
    stage.run.log_metrics(_metrics(ratings))
    summary("difficulty", [(name.replace("_", " "), f"{value:.3f}") for name, value in _metrics(ratings).items()])


def _attempts(stage: Stage, difficulty: Difficulty) -> SplitAttempts:
    """As in training: same temperature, same limits, k attempts and no greedy one."""
    rollout = stage.section(Rollout, "rollout")
    return SplitAttempts(
        model=stage.input("model").parent,
        split=stage.input("train"),
        sampling=training_sampling(rollout, difficulty.samples),
        seeds=(difficulty.seed, 0),
        engine=stage.section(Engine, "runtime.engine"),
        dtype=rollout.dtype,
        server_log=stage.log.with_suffix(".server.log"),
    )


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
