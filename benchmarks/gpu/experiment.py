"""A whole experiment through the DAG, in a folder of its own, and what its results say."""

import os
import signal
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.pipeline.snakemake import clones

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params, parse
from dagrpo.utils.files import read_json
from dagrpo.utils.run_info import GROUP, read_times, step_seconds

EXPERIMENT = "smollm2_135m_gsm8k_gpu"
TOY: dict[str, Any] = {
    "sft": {"steps": 3, "learning_rate_warmup_steps": 1},
    "training": {"steps": 1, "evaluate_every": 0, "mini_batches": 1, "keep_policies": None},
    "algorithm": {"kl": {"coefficient": 0.0}},
}
# Of several GPUs: a server on each beside the trainer's processes, servers with a GPU to themselves, and a server on two.
TOGETHER: dict[str, dict[str, Any]] = {
    "replicas": {"engine": {"replicas": 2}, "training": {"processes": 2}, "sft": {"processes": 2}},
    "own_gpus": {"engine": {"own_gpus": True}},
    "tensor_parallel": {"engine": {"tensor_parallel": 2}},
}
ON_GPU: dict[str, Any] = {  # heads of 64, which every attention of the server takes
    "model": {"fresh": {"hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 1024}},
    "rollout": {"dtype": "bfloat16", "deterministic": False},
    "training": {"dtype": "bfloat16"},
}
STEP = ("qwen2_5_0_5b", "gsm8k", "grpo", "h100")  # 256 prompts x 16
STEPS_MEASURED = 3
SECONDS_TO_STOP = 60.0  # for the stages to save what they have


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A share of the test problems, of one policy."""

    seed: str
    task: str
    metric: str  # greedy, or mean_at_k
    base: tuple[float, float, float]  # value, low, high
    trained: tuple[float, float, float]


def params_of(name: str, mirror: str | None, *, toy: bool) -> Params:
    """The parameters. UserError: there is no such preset."""
    if toy:
        return parse(merged(clones.TINY, TOY))
    own = {} if mirror is None else {"data": {"mirror": mirror}}
    return parse(merged(composed([name]).model_dump(), own))


def params_together(name: str, *, on_gpu: bool) -> Params:
    """Return the parameters of a toy that several GPUs train; `name`: a key of TOGETHER."""
    own = merged(merged(clones.TINY, TOY), ON_GPU if on_gpu else {})
    return parse(merged(own, {"experiment": {"name": name}, "runtime": TOGETHER[name]}))


def params_of_step(mirror: str | None) -> Params:
    """Return the parameters of three steps of GSM8K with Qwen2.5-0.5B, without evaluation."""
    own: dict[str, Any] = {
        "experiment": {"name": "step", "seeds": [0]},
        "training": {"steps": STEPS_MEASURED, "evaluate_every": 0, "learning_rate_warmup_steps": 1},
    } | ({} if mirror is None else {"data": {"mirror": mirror}})
    return parse(merged(composed(STEP).model_dump(), own))


def trained(params: Params) -> str:
    """Return the target of an experiment that ends with its training."""
    seed = params.experiment.seeds[0]
    return f"results/{params.experiment.name}/runs/seed_{seed}/metrics.parquet"


def seconds_of_step(folder: Path, params: Params) -> float | None:
    """Return the median seconds of a step, without the first; None: the training has not finished."""
    metrics = folder / trained(params)
    logs = folder / "logs" / params.experiment.name / metrics.parent.name
    taken = (read_times(logs, metrics) or []) if metrics.is_file() else []
    return statistics.median(map(step_seconds, taken[1:] or taken)) if taken else None


def run(params: Params, folder: Path, seconds: float, target: str = "target") -> str:
    """Run the DAG in a clone of the project. Returns "done", or why it is not, and how to go on. Nothing is left running."""
    if not (folder / "Snakefile").is_file():
        clones.clone(folder)
    (folder / "params.yaml").write_text(params_yaml(params))
    process = clones.start(folder, "snakemake", "--cores", "all", target)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        return f"stopped after {seconds / 60:.1f} minutes: {goes_on(folder, target)}"
    except BaseException:
        _stop(process)
        raise
    return "done" if code == 0 else f"failed with {code}: see {folder / 'output.txt'}; {goes_on(folder, target)}"


def goes_on(folder: Path, target: str) -> str:
    """The command with which the experiment goes on."""
    return f"`cd {folder} && snakemake --cores all {target}` goes on, and the same check with --out {folder.parent} reads it"


def _stop(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does, then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            pass
        return


def result(folder: Path, name: str) -> dict[str, Any]:
    """What the results say, as far as there are any; parts that are missing are empty."""
    results = folder / "results" / name
    report = results / "report/metrics.json"
    return {
        "experiment": name,
        "scores": [asdict(score) for score in scores(results)],
        "over_seeds": read_json(report) if report.is_file() else {},
        "steps": steps(folder, name),
    }


def scores(results: Path) -> Iterator[Score]:
    """The scores of every seed and task that has both policies'."""
    for task in sorted(results.glob("runs/seed_*/eval/*")):
        files = [task / policy / "scores.json" for policy in ("base", "trained")]
        if not all(file.is_file() for file in files):
            continue
        base, trained = map(read_json, files)
        seed = task.parents[1].name.removeprefix("seed_")
        for metric in ("greedy", "mean_at_k"):
            yield Score(
                seed=seed,
                task=task.name,
                metric=metric,
                base=_estimate(base[metric]),
                trained=_estimate(trained[metric]),
            )


def _estimate(of: Mapping[str, float]) -> tuple[float, float, float]:
    return of["value"], of["low"], of["high"]


def steps(folder: Path, name: str) -> dict[str, float]:
    """Medians of the seconds and speeds of steps, over all seeds, without each one's first step; {} without a finished run."""
    values: dict[str, list[float]] = {}
    for metrics in sorted((folder / "results" / name).glob("runs/seed_*/metrics.parquet")):
        taken = read_times(folder / "logs" / name / metrics.parent.name, metrics) or []
        for step in taken[1:] or taken:
            for part, value in step.items():
                values.setdefault(part.removeprefix(GROUP), []).append(value)
    return {part: statistics.median(each) for part, each in sorted(values.items())}
