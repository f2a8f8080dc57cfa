"""A tiny model, a tiny split, and an engine whose completions are scripted: whole runs of the trainer in a second.

`python -m dagrpo.pipeline.launch N tests/trainer/runs.py INITIAL SPLIT OUT STEPS` trains in N processes. With one argument more it
waits in its second step until it is told to stop; the variable SAVE_EVERY is the steps between states, COPIES those of the policy.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tests.trainer.conftest import terminate

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.modules import empty_model
from dagrpo.checkpoints.sharded import read_weights
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.config.overlay import merged
from dagrpo.core.types import Completion, Row, SamplingRequest, ScoringRequest
from dagrpo.data.prepare import passages_table
from dagrpo.data.schema import to_table
from dagrpo.engine.interface import Aborted, Adapter, EngineOpener, HeldWeights
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import HeldOutSplits, Report, TrainingRun, files_in, no_report
from dagrpo.trainer.training import train
from dagrpo.utils.child_variables import LOOPBACK
from dagrpo.utils.distributed import RENDEZVOUS, World, process_group, single_process
from dagrpo.utils.tables import write_parquet

ROOT = Path(__file__).parents[2]
SHAPE = Fresh(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,  # 4 rows: the last of three processes holds none of them
    intermediate_size=32,
    max_position_embeddings=128,
)
MAX_NEW_TOKENS = 6
_STOP = character_tokenizer(128).eos_token_id


class ScriptedEngine:
    """Completions of one to six tokens that a request's seed decides; their logprobs are those of the loaded weights.

    Notes what it was asked, in order: "load step_0", "generate", ...; not the probes, which begin with a greedy request. As a
    teacher it notes "load teacher" and "score".
    """

    def __init__(self, model: Path, asked: list[str]) -> None:
        self.asked = asked
        self.version = ""
        self.interrupted = threading.Event()
        self._model = empty_model(model, torch.float32)

    def load(self, weights: Tensors, version: str) -> None:
        self.asked.append(f"load {version}")
        self.version = version
        self.fill(weights)

    def fill(self, weights: Tensors) -> None:
        with torch.no_grad():
            read_weights(self._model, weights)

    def serve(self, weights: Tensors, adapter: Adapter, version: str) -> None:
        """Begin with an adapter beside the weights."""
        raise AssertionError("it serves weights alone")

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        assert lockstep
        if requests[0].temperature > 0:
            self.asked.append("generate")
        return [self._completion(request) for request in requests]

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        assert lockstep
        self.asked.append("score")
        return [self._scores(request) for request in requests]

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        raise AssertionError("these runs are in lockstep")

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        raise AssertionError("these runs are in lockstep")

    def release_memory(self) -> None:
        """It takes none."""

    def digests(self) -> list[HeldWeights]:
        return [SGLangWeights(({name: digest_on_cpu(tensor) for name, tensor in self._model.state_dict().items()},))]

    def interrupt(self) -> None:
        self.interrupted.set()

    def _scores(self, request: ScoringRequest) -> tuple[float, ...]:
        ids = torch.tensor([request.token_ids])
        with torch.no_grad():
            table = torch.log_softmax(self._model(ids).logits[0, request.first - 1 : -1], dim=-1)
        return tuple(table.gather(1, ids[0, request.first :, None])[:, 0].tolist())

    def _completion(self, request: SamplingRequest) -> Completion:
        tokens = self._written(request)
        with torch.no_grad():
            logits = self._model(**self._shown(request, tokens)).logits[0]
        first = len(request.input_ids) - 1
        support = self._support(logits[first:], tokens, request.top_k) if request.support else []
        for place, ids in enumerate(support):
            left = torch.full_like(logits[0], float("-inf"))
            left[list(ids)] = 0
            logits[first + place] += left
        table = torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)
        return Completion(
            token_ids=tuple(tokens),
            logprobs=tuple(float(table[first + i, token]) for i, token in enumerate(tokens)),
            finish_reason="stop" if len(tokens) < MAX_NEW_TOKENS else "length",
            weight_version=self.version,
            support=tuple(support),
        )

    def _written(self, request: SamplingRequest) -> list[int]:
        """The tokens that the script has a request answered with."""
        script = np.random.default_rng(request.seed)
        length = min(int(script.integers(1, MAX_NEW_TOKENS + 1)), request.max_new_tokens)
        tokens = [int(token) for token in script.integers(4, 200, length)]
        return tokens if length == MAX_NEW_TOKENS else [*tokens[:-1], _STOP]

    def _shown(self, request: SamplingRequest, tokens: Sequence[int]) -> dict[str, Any]:
        """What the model reads of a request, and of its completion."""
        return {"input_ids": torch.tensor([[*request.input_ids, *tokens]])}

    def _support(self, logits: torch.Tensor, tokens: Sequence[int], top_k: int) -> list["array[int]"]:
        """Of each token: the likeliest ones, and the one that the script has chosen."""
        likeliest = logits.topk(top_k).indices.tolist()
        return [array("i", sorted({*likeliest[place], token})) for place, token in enumerate(tokens)]


class WaitingEngine(ScriptedEngine):
    """One that never ends its second step; the file `sampling` says that it is there."""

    waiting: Path

    def generate(self, requests: Sequence[SamplingRequest], **how: Any) -> list[Completion]:
        if self.version == "step_1" and requests[0].temperature > 0:
            self.waiting.touch()
            time.sleep(600)
        return super().generate(requests, **how)


def opener(asked: list[str], kind: type[ScriptedEngine] = ScriptedEngine) -> Any:
    """Return what opens scripted engines, which note in `asked` what they are asked."""

    @contextmanager
    def open_engine(
        model: Path,
        *_: object,
        weights: Tensors | None = None,
        version: str = "initial",
        adapter: Adapter | None = None,
        **options: object,
    ) -> Iterator[ScriptedEngine]:
        engine, weights = kind(model, asked), open_tensors(model) if weights is None else weights
        if adapter is None:
            engine.load(weights, version)
        else:
            engine.serve(weights, adapter, version)
        yield engine

    return open_engine


def make_inputs(folder: Path) -> tuple[Path, Path]:
    """(initial checkpoint, train split) with ten problems."""
    make_fresh(folder / "model", SHAPE, torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    return folder / "initial", make_split(folder)


def make_split(folder: Path) -> Path:
    """Write the train split of ten problems."""
    write_parquet(folder / "train.parquet", to_table([task_row(number) for number in range(10)]))
    return folder / "train.parquet"


def task_row(number: int) -> Row:
    """The problem 1 + number."""
    question = f"1+{number}=?"
    return Row(
        task="arithmetic",
        split="train",
        index=number,
        prompt=({"role": "user", "content": question},),
        question=question,
        answer=f"#### {1 + number}",
        ground_truth=str(1 + number),
        data_source="test",
    )


def example_with_pictures(number: int, *files: bytes) -> Row:
    """The same problem, which shows pictures first."""
    plain = task_row(number)
    text = "<image>" * len(files) + plain.question
    return replace(plain, prompt=({"role": "user", "content": text},), images=files)


def held_out_splits(folder: Path, task: str, tests: Sequence[int], validations: Sequence[int] = ()) -> HeldOutSplits:
    """The problems 1 + number of a task that nothing is learned from."""
    files = {name: folder / task / f"{name}.parquet" for name in ("validation", "test", "passages")}
    for split, numbers in (("validation", validations), ("test", tests)):
        rows = [replace(task_row(number), task=task, split=split) for number in numbers]
        write_parquet(files[split], to_table(rows))
    write_parquet(files["passages"], passages_table(()))
    return HeldOutSplits(**files)


def training_run(
    inputs: tuple[Path, Path], state: Path, out: Path, steps: int, *, permuted: bool = False, **runtime: Any
) -> TrainingRun:
    """Four problems with four samples each per step; shorter completions are worth more. `runtime` is .training's."""
    initial, split = inputs
    files = files_in(out)
    files["state"] = state
    return TrainingRun(
        initial=initial,
        train_splits={"arithmetic": split},
        seed=7,
        rollout=Rollout(max_new_tokens=MAX_NEW_TOKENS),
        reward=Reward.model_validate(
            {"components": {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": 5}}, "permuted": permuted}
        ),
        algorithm=Algorithm(),
        training=Training(
            steps=steps, prompts_per_step=4, samples_per_prompt=4, learning_rate=1e-2, learning_rate_warmup_steps=2
        ),
        runtime=Runtime.model_validate({"training": {"save_every": 2, **runtime}}),
        **files,
    )


def changed(run: TrainingRun, **sections: dict[str, Any]) -> TrainingRun:
    """Return the run with other values of these keys of its sections."""
    own = {name: getattr(run, name) for name in sections}
    return replace(
        run,
        **{name: type(own[name]).model_validate(merged(own[name].model_dump(), sections[name], name)) for name in own},
    )


Reported = list[tuple[int, dict[str, float]]]


def execute(
    run: TrainingRun,
    kind: type[ScriptedEngine] = ScriptedEngine,
    world: World | None = None,
    stop: Callable[[int], bool] = lambda step: False,
    report_held_out: Report = no_report,
) -> tuple[list[str], Reported]:
    """Train with a scripted engine; returns what it was asked and what was reported. Ends where `stop(step)` says."""
    asked: list[str] = []
    run.policy.parent.mkdir(parents=True, exist_ok=True)
    try:
        reported = _reported(run, opener(asked, kind), world or single_process(), stop, report_held_out)
    finally:
        torch.use_deterministic_algorithms(False)
    return asked, reported


def metrics_with(
    run: TrainingRun, open_engine: EngineOpener, stop: Callable[[int], bool] = lambda step: False
) -> list[dict[str, float]]:
    """Train with an engine that is opened so; returns the metrics of each step. Ends where `stop(step)` says."""
    return [metrics for _, metrics in _reported(run, open_engine, single_process(), stop)]


def _reported(
    run: TrainingRun,
    open_engine: EngineOpener,
    world: World,
    stop: Callable[[int], bool],
    report_held_out: Report = no_report,
) -> Reported:
    reported: Reported = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        reported.append((step, dict(metrics)))
        if stop(step):
            raise Interrupted

    with suppress(Interrupted):
        train(run, report, world, open_engine, report_held_out)
    return reported


def launch(
    processes: int, work: str | Callable[..., Any], *arguments: object, told_to_stop_by: Path | None = None
) -> list[Any]:
    """Run `work(world, *arguments)`, or a script, in several processes that find each other; return what each rank returns, as JSON.

    They are forked from a process that has imported torch and the package, which takes longer than most of the work.
    `told_to_stop_by`: once this file exists, all get SIGTERM, and have to end as a stage does that is told to stop.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["pytest", train.__module__, "transformers.models.qwen2.modeling_qwen2"])
    with TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(dict(os.environ), Path(folder), rank, processes, work, *arguments))
            for rank in range(processes)
        ]
        for process in ranks:
            process.start()
        try:
            if told_to_stop_by is not None:
                _tell_to_stop(ranks, told_to_stop_by)
            codes = _exit_codes(ranks)
        finally:
            for process in ranks:
                process.kill()
        ended = 0 if told_to_stop_by is None else 128 + signal.SIGTERM
        assert codes == [ended] * processes, "\n".join(
            path.read_text()[-4000:] for path in sorted(Path(folder).glob("*.log"))
        )
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def _tell_to_stop(ranks: Sequence[ForkServerProcess], once: Path) -> None:
    while not once.exists() and all(process.is_alive() for process in ranks):
        time.sleep(0.05)
    for process in ranks:
        process.terminate()


def _exit_codes(ranks: Sequence[ForkServerProcess]) -> list[int | None]:
    """Wait until all have ended, or one has failed; None for a process that is still running then."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        wait([process.sentinel for process in ranks if process.is_alive()], timeout=1)
        codes = [process.exitcode for process in ranks]
        if any(code not in (None, 0, 128 + signal.SIGTERM) for code in codes) or None not in codes:
            return codes
    raise AssertionError("the processes have not ended in 300 s")


def _rank(
    variables: dict[str, str], folder: Path, rank: int, processes: int, work: str | Callable[..., Any], *arguments: Any
) -> None:
    """Work as `dagrpo.pipeline.launch` would have one of its processes do; what is printed goes to a log in the folder."""
    log = os.open(folder / f"rank_{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ.update(variables | {name: str(value) for name, value in own.items()} | LOOPBACK)
    os.environ.update({"TORCHELASTIC_RUN_ID": "dagrpo", RENDEZVOUS: str(folder / "rendezvous")})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(ROOT)
    torch.set_num_threads(1)
    if isinstance(work, str):
        sys.argv = [work, *map(str, arguments)]
        runpy.run_path(work, run_name="__main__")
        return
    torch.use_deterministic_algorithms(True)
    with process_group() as world:
        result = work(world, *arguments)
    (folder / f"rank_{rank}.json").write_text(json.dumps(result))


class Interrupted(Exception):
    """What ends a run in the middle."""


def bytes_of(run: TrainingRun) -> dict[str, bytes]:
    """The outputs of a run: policy (by its manifest), metrics, rollouts (by theirs), held-out answers."""
    return {
        "policy": (run.policy / "manifest.json").read_bytes(),
        "metrics": run.metrics.read_bytes(),
        "rollouts": run.rollouts.read_bytes(),
        "held_out": run.held_out.read_bytes(),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminate)
    WaitingEngine.waiting = Path(sys.argv[3]) / "sampling"
    with process_group(copies=int(os.environ.get("COPIES", "1"))) as joint:
        out, every = Path(sys.argv[3]), int(os.environ.get("SAVE_EVERY", "2"))
        inputs = (Path(sys.argv[1]), Path(sys.argv[2]))
        made = training_run(inputs, out / "state", out, int(sys.argv[4]), save_every=every)
        orders, _ = execute(made, WaitingEngine if sys.argv[5:] else ScriptedEngine, world=joint)
        if joint.is_rank_zero:
            (Path(sys.argv[3]) / "asked.json").write_text(json.dumps(orders))
