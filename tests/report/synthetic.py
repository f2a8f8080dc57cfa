"""A made-up experiment in the results layout: every file the report reads, small, and the same each time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.rollout import conversations
from tests.rollout.problems import SINGLE_TURN

from dagrpo.config.schema import Params
from dagrpo.core.experiment import task_metric
from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.held_out_table import HELD_OUT
from dagrpo.evaluation.scoring import score
from dagrpo.evaluation.statistics import Floats
from dagrpo.report.build import build
from dagrpo.report.config import Report
from dagrpo.report.inputs import Inputs, read_inputs
from dagrpo.report.page import Page
from dagrpo.rollout.table import ROLLOUTS
from dagrpo.trainer.state.digest_table import FILE, digest_table
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo.utils.manifest import entry_of
from dagrpo.utils.tables import read_parquet, write_parquet

HOSTILE = (
    '</pre><script src="https://evil.example/x.js">alert(1)</script>\u202e<img src=x onerror=alert(2)>\x07 & #### 1'
)
SCORED = ("scores.parquet", "scores.json")
SAMPLES = 4
GROUP = 8
REPORT = Report(completions=5, smoothing=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The inputs of the stage, by the names it gives them."""

    experiment: str
    scores: list[Path]
    summaries: list[Path]
    metrics: list[Path]
    rollouts: list[Path]
    provenance: list[Path]
    held_out: list[Path] = field(default_factory=list)
    choices: list[Path] = field(default_factory=list)
    splits: list[Path] = field(default_factory=list)  # of tasks with pictures: a test says which there are

    def read(self) -> Inputs:
        return read_inputs(**{each.name: getattr(self, each.name) for each in fields(self)})


def page_of(files: Files, report: Report = REPORT) -> Page:
    """The page of an experiment."""
    return build(files.read(), report, {"report": report.model_dump()}, Params().model_dump())


def list_again(manifest: Path, names: Sequence[str] | None = None) -> None:
    """Write the manifest's entries anew, of the files that it lists or of these."""
    listed = read_json(manifest)["files"] if names is None else names
    write_json(manifest, {"files": {name: asdict(entry_of(manifest.with_name(name))) for name in listed}})


def add_held_out(files: Files, split: str = "test", problems: int = 64) -> Files:
    """Held-out accuracies of each seed and task: 0.25 at first, and 0.125 more every four steps."""
    inputs = files.read()
    for seed, metrics in inputs.metrics.items():
        rows = [
            {
                "step": step,
                "split": split,
                "oracle": False,
                "task": task,
                "problem_index": problem,
                "extracted": "1",
                "verdict": "right" if right else "wrong",
                "correct": right,
                "truncated": False,
                "completion_tokens": 3,
            }
            for step in range(0, metrics.num_rows + 1, 4)
            for place, task in enumerate(inputs.tasks)
            for problem in range(problems)
            for right in [problem < problems * (0.25 + 0.125 * (step // 4)) - 3 * seed - 9 * place]
        ]
        path = inputs.rollouts[seed].parents[1] / "held_out.parquet"
        write_parquet(path, pa.Table.from_pylist(rows, schema=HELD_OUT))
        files.held_out.append(path)
    return files


def add_mixture(files: Files, tasks: Sequence[str] = ("gsm8k", "math")) -> Files:
    """Metrics of a mixture: of each task rewards that rise from 0.1 times its place to 0.5 more; of the last none in step 2."""
    for path in files.metrics:
        table = read_parquet(path)
        course = np.linspace(0.0, 0.5, table.num_rows)
        for place, task in enumerate(tasks, start=1):
            of_task = {
                "reward_mean": course + 0.1 * place,
                "correct_fraction": course,
                "tokens_mean": 100.0 * place + 0 * course,
                "entropy": 0.5 - 0.5 * course,
                "no_signal_fraction": 0.5 * course,
                "epoch": course,
                "called_fraction": course,
                "groups": 4.0 / place + 0 * course,
            }
            if place == len(tasks):
                of_task["reward_mean"][1:2] = np.nan
            for name, values in of_task.items():
                table = table.append_column(task_metric(task, name), pa.array(values))
        write_parquet(path, table)
    return files


def make_experiment(
    root: Path,
    *,
    seeds: tuple[int, ...] = (0,),
    tasks: tuple[str, ...] = ("arithmetic",),
    problems: int = 40,
    steps: int = 12,
    trained_accuracy: float = 0.9,
    samples: int = SAMPLES,
    also: Sequence[str] = (),
    ended: Mapping[int, int] | None = None,
    kept: Mapping[int, float] | None = None,
) -> Files:
    """Write an experiment `tiny` under root/results; paths in provenance are relative to root.

    also: published scorers. ended: steps of a seed that training.patience ended. kept: the accuracy of the policy kept after a step. A
    task whose name ends in _tool has conversations, also in training where it is the first one.
    """
    files = Files(experiment="tiny", scores=[], summaries=[], metrics=[], rollouts=[], provenance=[])
    maker = _Maker(
        root=root,
        random=np.random.default_rng(7),
        problems=problems,
        steps=steps,
        samples=samples,
        also=also,
        files=files,
    )
    for task in tasks:
        maker.prepare(task)
    maker.model()
    for seed in seeds:
        maker.train(seed, tasks[0], (ended or {}).get(seed, steps))
        for task in tasks:
            maker.evaluate(seed, task, "base", 0.6)
            maker.evaluate(seed, task, "trained", trained_accuracy)
            for step, accuracy in (kept or {}).items():
                maker.evaluate(seed, task, f"step_{step}", accuracy)
    return files


@dataclass(slots=True, kw_only=True)
class _Maker:
    root: Path
    random: np.random.Generator
    problems: int
    steps: int
    samples: int
    also: Sequence[str]
    files: Files

    def prepare(self, task: str) -> None:
        folder = self.root / "data" / task
        for split in ("train", "test"):
            write_json(folder / f"{split}.parquet", {"task": task, "split": split})
        outputs = [folder / "train.parquet", folder / "test.parquet"]
        self._provenance("prepare", None, [], outputs, {"data": {"arithmetic": {"seed": 0, "sizes": [4000, 512]}}})

    def model(self) -> None:
        manifest = self.root / "models/tiny_qwen2/manifest.json"
        write_json(manifest, {"format": "huggingface"})
        self._provenance("model", None, [], [manifest], {"model": {"name": "tiny_qwen2", "source": "fresh"}})

    def train(self, seed: int, task: str, steps: int) -> None:
        folder = self.root / f"results/tiny/seed_{seed}"
        metrics, rollouts = folder / "metrics.parquet", folder / "rollouts/manifest.json"
        course = 0.6 + 0.3 * (1 - np.exp(-np.arange(self.steps) / (self.steps / 4)))
        course = np.clip(course + self.random.normal(0, 0.02, self.steps) + 0.02 * seed, 0, 1)
        course = course[:steps]
        talks = task.endswith("_tool")
        write_parquet(metrics, _metrics(course, self.random, talks=talks))
        names = [f"step_{step:05d}.parquet" for step in range(1, steps + 1)]
        for step, name in enumerate(names):
            table = _talks(step + 1) if talks else _rollouts(step + 1, float(course[step]), self.random)
            write_parquet(rollouts.with_name(name), table)
        names.append(FILE)  # no rollouts, though it lies beside them
        write_parquet(rollouts.parent / FILE, digest_table({}))
        list_again(rollouts, names)
        policy = folder / "policy/manifest.json"
        write_json(policy, {"format": "dcp", "seed": seed})
        inputs = [self.root / "models/tiny_qwen2/manifest.json", self.root / "data" / task / "train.parquet"]
        params = {
            "training": {"steps": self.steps, "prompts_per_step": 4, "samples_per_prompt": GROUP},
            "reward": {"extractor": "strict", "permuted": False},
            "algorithm": {
                "advantage": {"name": "grpo"},
                "loss": {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2},
            },
        }
        self._provenance("train", seed, inputs, [policy, metrics, rollouts], params)
        self.files.metrics.append(metrics)
        self.files.rollouts.append(rollouts)

    def evaluate(self, seed: int, task: str, variant: str, accuracy: float) -> None:
        folder = self.root / f"results/tiny/seed_{seed}/eval/{task}/{variant}"
        completions, scores, summary = (folder / name for name in ("completions.parquet", *SCORED))
        made = (
            _evaluated_talks(self.problems, self.samples, variant)
            if task.endswith("_tool")
            else sampled_completions(task, self.problems, self.samples, accuracy, self.random)
        )
        write_parquet(completions, made)
        scoring = Scoring(bootstrap_draws=200, also=[*self.also])
        table, found = score(completions, scoring)
        write_parquet(scores, table)
        write_json(summary, {**found, "oracle": False})
        model = "models/tiny_qwen2" if variant == "base" else f"results/tiny/seed_{seed}/policy"
        inputs = [self.root / model / "manifest.json", self.root / "data" / task / "test.parquet"]
        sampling = {"evaluation": {"sampling": {"seed": 1000, "samples": self.samples, "temperature": 1.0}}}
        self._provenance("sample", seed, inputs, [completions], sampling)
        params = {"evaluation": {"scoring": scoring.model_dump()}}
        self._provenance("score", seed, [completions], [scores, summary], params)
        self.files.scores.append(scores)
        self.files.summaries.append(summary)

    def _provenance(
        self, stage: str, seed: int | None, inputs: list[Path], outputs: list[Path], params: dict[str, Any]
    ) -> None:
        path = outputs[0].parent / f"{stage}.provenance.json"
        record = {
            "stage": stage,
            "experiment": "tiny",
            "seed": seed,
            "params": params,
            "code": "c0de",
            "key": f"{stage}{outputs[0]}",
            "inputs": {str(file.relative_to(self.root)): sha256_of(file) for file in inputs},
            "outputs": {str(file.relative_to(self.root)): sha256_of(file) for file in outputs},
        }
        write_json(path, record)
        self.files.provenance.append(path)


def _metrics(course: Floats, random: np.random.Generator, *, talks: bool = False) -> pa.Table:
    steps = len(course)
    difference = 10 ** random.normal(-6.3, 0.1, steps)
    columns = {
        "reward/mean": course,
        "reward/accuracy": course,
        "policy/entropy": 0.45 - 0.35 * (course - 0.6) / 0.3,
        "rollout/groups_without_spread": np.clip(2 * course - 1, 0, 1) ** 2,
        "rollout/length_mean": 9 + random.normal(0, 0.1, steps),
        "policy/logprob_difference_mean": difference,
        "policy/logprob_difference_max": 8 * difference,
    }
    if talks:
        columns |= {
            "rollout/turns_mean": 1 + course,
            "tool/calls_mean": course * 1.1,
            "tool/called_fraction": course,
            "tool/ok_fraction": 0.5 + course / 2,
        }
    return pa.table({"step": pa.array(range(1, steps + 1), pa.int32()), **columns})


def _rollouts(step: int, accuracy: float, random: np.random.Generator) -> pa.Table:
    count = 4 * GROUP
    right = random.random(count) < np.repeat(random.beta(4 * accuracy, 4 * (1 - accuracy) + 0.1, 4), GROUP)
    lengths = random.integers(7, 13, count)
    return pa.table(
        {
            "step": pa.array([step] * count, pa.int32()),
            "sample_index": pa.array([index % GROUP for index in range(count)], pa.int32()),
            "completion_tokens": pa.array(lengths, pa.int32()),
            "finish_reason": ["length" if n == 12 else "stop" for n in lengths],
            "correct": right.tolist(),
            "reward": pa.array(right.astype(np.float32)),
            "discarded": [False] * count,
        }
    )


def _talks(step: int) -> pa.Table:
    """Two groups of eight attempts, with tools and without, one of them hostile."""
    made = conversations
    kinds = (
        made.with_tool,
        made.mended,
        made.alone,
        made.corrected,
        made.excluded,
        made.hostile,
        made.alone,
        made.alone,
    )
    rows = [kind(problem, sample) for problem in (0, 1) for sample, kind in enumerate(kinds)]
    return conversations.training_table(rows, [1.0, 0.9, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0] * 2, step)


def _evaluated_talks(problems: int, samples: int, variant: str) -> pa.Table:
    """The trained policy calls the tool, the base policy seldom; one attempt is hostile, one excluded."""
    made = conversations
    kinds = {
        "base": (made.alone, made.alone, made.mended, made.alone),
        "trained": (made.with_tool, made.mended, made.with_tool, made.alone),
    }[variant]
    rows = [
        kinds[(problem + sample + 1) % 4](problem, sample)
        for problem in range(problems)
        for sample in range(-1, samples)
    ]
    for problem, kind in ((3, made.hostile), (7, made.excluded)):
        rows[problem * (samples + 1)] = kind(problem, -1)
    return conversations.table(rows)


def sampled_completions(
    task: str, problems: int, samples: int, accuracy: float, random: np.random.Generator
) -> pa.Table:
    rows = []
    chance = random.beta(3 * accuracy, 3 * (1 - accuracy) + 0.05, problems)
    for problem in range(problems):
        left, right = 13 + 7 * problem, 5 + 11 * problem % 90
        for sample in range(-1, samples):
            correct = random.random() < (chance[problem] if sample >= 0 else float(chance[problem] > 0.45))
            text = f"{left} + {right} = {left + right + (not correct)}\n#### {left + right + (not correct)}"
            if problem == 3:
                text = HOSTILE
            rows.append(
                {
                    "task": task,
                    "problem_index": problem,
                    "sample_index": sample,
                    "prompt": f"<|user|>{left} + {right}<|assistant|>",
                    "completion": text,
                    "completion_ids": list(range(len(text) % 16 + 1)),
                    "prompt_ids": [1],
                    "rollout_logprobs": [-0.1] * (len(text) % 16 + 1),
                    "weight_version": "v",
                    "finish_reason": "length" if random.random() < 0.03 else "stop",
                    "ground_truth": str(left + right),
                    "verifier": "gsm8k",
                    "question": f"What is {left} + {right}? End with #### and the number.",
                    "sampling_seed": problem * 10 + sample + 1,
                    **SINGLE_TURN,
                }
            )
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)
