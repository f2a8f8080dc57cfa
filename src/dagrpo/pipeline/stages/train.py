"""Stage train: GRPO with rollouts of an engine."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from dagrpo.pipeline.declaration import RATED, RAW, RUN, TRAIN_DATA, Job, Needs, Params, Stage, Wildcards
from dagrpo.trainer.config.runtime import Runtime

if TYPE_CHECKING:
    from dagrpo.trainer.run import TrainingRun

ABOUT_TURNS = {
    "rollout/turns_mean": "turns",
    "tool/calls_mean": "calls",
    "tool/called_fraction": "trajectories with a call",
    "tool/ok_fraction": "calls that went well",
}
FAILED = "rollout/stop_program_failed_fraction"


def work(job: Job) -> None:
    """Train to the last step with the backend that training.backend names, from the newest state if there is one."""
    from dagrpo.pipeline.curve import Curve
    from dagrpo.trainer.backends import BACKENDS
    from dagrpo.utils.console import summary
    from dagrpo.utils.run_info import times_of, write_times

    run = _run(job)
    curve: list[Mapping[str, float]] = []
    live = Curve(job.log)
    held_out: dict[int, Mapping[str, float]] = {}

    def report(step: int, metrics: Mapping[str, float]) -> None:
        curve.append(metrics)
        live.add(step, metrics)

    def report_held_out(step: int, metrics: Mapping[str, float]) -> None:
        held_out[step] = metrics
        live.add(step, metrics)

    backend = run.training.backend
    BACKENDS.get(backend.name).train(run, backend, threads=job.threads, report=report, report_held_out=report_held_out)
    if not curve:  # a rank that does not report
        return
    write_times(job.log.parent, run.metrics, times_of(curve))
    summary(f"train, seed {job.seed}", [*rows_to_show(curve), *_about_held_out(held_out)])


def _run(job: Job) -> "TrainingRun":
    from dagrpo.algorithms.config import Algorithm
    from dagrpo.core.experiment import learned, shares_of
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout
    from dagrpo.trainer.config.training import Training
    from dagrpo.trainer.run import HeldOutSplits, TrainingRun

    folders = dict.fromkeys(path.parent for path in job.inputs.get("held_out", ()))  # in the order of the tasks
    names = ("validation", "test", "passages")
    train = job.params["experiment"]["train"]
    return TrainingRun(
        initial=job.input("initial").parent,
        train_splits=learned(train, job.inputs["train"]),
        shares=shares_of(train),
        passages=tuple(learned(train, job.inputs["passages"]).values()),
        teacher=job.input("teacher").parent,
        seed=job.own_seed,
        rollout=job.section(Rollout, "rollout"),
        reward=job.section(Reward, "reward"),
        algorithm=job.section(Algorithm, "algorithm"),
        training=job.section(Training, "training"),
        runtime=job.runtime,
        state=job.state,
        server_log=job.log.with_name("train.server.log"),
        policy=job.output("policy").parent,
        metrics=job.output("metrics"),
        rollouts=job.output("rollouts"),
        held_out=job.output("held_out"),
        kept=job.output("kept"),
        held_out_splits=tuple(HeldOutSplits(**{n: folder / f"{n}.parquet" for n in names}) for folder in folders),
        facts=job.facts,
    )


def rows_to_show(curve: Sequence[Mapping[str, float]]) -> list[tuple[str, str]]:
    """Summarise a finished run as lines of text, from those of its metrics that its backend measures."""
    from dagrpo.core.experiment import tasks_among
    from dagrpo.utils.run_info import step_seconds, times_of

    last = curve[-min(10, len(curve)) :]
    seconds = sum(map(step_seconds, times_of(curve)))
    is_ahead = any(metrics.get("rollout/staleness") for metrics in curve)
    difference = (
        "change of a logprob since it was sampled" if is_ahead else "logprob difference, engine against trainer"
    )

    def of(steps: Sequence[Mapping[str, float]], name: str) -> list[float]:
        return [metrics[name] for metrics in steps if name in metrics]

    rewards, largest = of(last, "reward/mean"), of(curve, "policy/logprob_difference_max")
    speeds = of(curve, "timing/tokens_per_second")
    return [
        ("steps", str(len(curve))),
        *([("reward, last 10 steps", f"{sum(rewards) / len(rewards):.3f}")] if rewards else []),
        *((f"  {task}", _of_task(task, last)) for task in tasks_among(chain(*last))),
        *(
            (f"{label}, last 10 steps", f"{sum(of(last, name)) / len(last):.3f}")
            for name, label in ABOUT_TURNS.items()
            if all(name in metrics for metrics in last)
        ),
        *(
            [("attempts whose program failed, last 10 steps", f"{sum(of(last, FAILED)) / len(last):.1%}")]
            * any(of(curve, FAILED))
        ),
        *([(f"largest {difference}", f"{max(largest):.1e}")] if largest else []),
        *([("seconds per step", f"{seconds / len(curve):.2f}")] if seconds else []),
        *([("tokens per second", f"{sum(speeds) / len(speeds):,.0f}")] if speeds else []),
    ]


def _of_task(task: str, steps: Sequence[Mapping[str, float]]) -> str:
    """Return a line on a task of a mixture: its reward, length and prompts without signal, means over steps, and its epochs."""
    from dagrpo.core.experiment import task_metric

    def of(name: str) -> list[float]:
        return [each for metrics in steps if (each := metrics.get(task_metric(task, name), math.nan)) == each]

    written = {
        "reward_mean": "{:.3f}",
        "tokens_mean": "{:.0f} tokens",
        "no_signal_fraction": "{:.0%} of prompts without signal",
    }
    means = [text.format(sum(of(name)) / len(of(name))) for name, text in written.items() if of(name)]
    return ", ".join([*means, *(f"epoch {epoch:.2f}" for epoch in of("epoch")[-1:])])


def _about_held_out(figures: Mapping[int, Mapping[str, float]]) -> list[tuple[str, str]]:
    """Return a line for each task whose held-out problems were answered: the first policy, and the last."""
    if not figures:
        return []
    first, last = figures[min(figures)], figures[max(figures)]
    return [
        (f"held-out problems, {name.split('/')[1]}", f"{first[name]:.3f} at first, {last[name]:.3f} at last")
        for name in last
    ]


def held_out_data(params: Params, wildcards: Wildcards) -> list[str]:
    """List the files of the held-out problems that training answers; [] if training.evaluate_every asks for none."""
    tasks = params.experiment.evaluate if params.training.evaluate_every else []
    names = ("validation", "test", "passages")
    return [f"data/{wildcards['experiment']}/{task}/{name}.parquet" for task in tasks for name in names]


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """List the files that the reward and the tools read: rubrics, manifests of checkpoints, corpora."""
    from dagrpo.pipeline.raw_inputs import files_of_tools

    tasks = {*params.experiment.train_tasks, *(params.experiment.evaluate if params.training.evaluate_every else ())}
    return [*params.reward.files, *files_of_tools(params, tasks)]


def needs(runtime: Runtime) -> Needs:
    threads = runtime.training.threads_of_node(runtime.nodes)
    shared, own = [runtime.training.processes, runtime.teacher.gpus], 0
    for engine in (runtime.engine, runtime.reward_model):
        if engine.own_gpus:
            own += engine.gpus
        else:
            shared.append(engine.gpus)
    resources: dict[str, Any] = {"memory_mb": 6000, "memory_per_byte": 12, "minutes": 1440, "minutes_per_gb": 240}
    return Needs(threads=threads, beside=runtime.engine.all_threads, gpus=max(shared) + own, **resources)


def launched(params: Mapping[str, Any]) -> bool:
    """Return False if the backend starts its processes itself."""
    from dagrpo.trainer.backends import BACKENDS

    return not BACKENDS.get(params["training"]["backend"]["name"]).launches_processes


STAGE = Stage(
    name="train",
    work=work,
    reads=("runtime.portable_arithmetic", "experiment.train", "rollout", "reward", "algorithm", "training"),
    inputs={
        "initial": f"{RUN}/initial/manifest.json",
        "train": f"{RATED}/train.parquet",
        "passages": f"{TRAIN_DATA}/passages.parquet",
        "teacher": "models/{experiment}/teacher/manifest.json",
        "held_out": held_out_data,
        RAW: raw,
    },
    outputs={
        "policy": f"{RUN}/policy/manifest.json",
        "metrics": f"{RUN}/metrics.parquet",
        "rollouts": f"{RUN}/rollouts/manifest.json",
        "held_out": f"{RUN}/held_out.parquet",
        "kept": f"{RUN}/kept/manifest.json",
        "provenance": f"{RUN}/policy/provenance.json",
    },
    label="seed {seed}",
    selects=(
        "backend",
        "loss",
        "advantage",
        "correction",
        "term",
        "verifier",
        "component",
        "format",
        "agent",
        "tool",
        "chat",
        "interaction",
        "engine",
        "teacher_engine",
        "reward_engine",
    ),
    extends=(
        "training.steps",
        "training.gates",
        "training.keep_policies",
        *(f"reward.components.judge.{key}" for key in ("url", "concurrency", "seconds", "retries", "answers")),
        "reward.unit_tests.parallel",
    ),
    needs=needs,
    processes=lambda runtime: runtime.training.processes,
    nodes=lambda runtime: runtime.nodes + runtime.engine.nodes,
    launched=launched,
    restarts=3,
)
