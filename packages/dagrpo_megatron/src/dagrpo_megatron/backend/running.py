"""Run of Megatron-LM: files, check of the command line, start, checkpoint."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.source import open_as
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import Metrics, Program
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.utils.addresses import free_port
from dagrpo.utils.child_variables import alone
from dagrpo.utils.console import say
from dagrpo.utils.files import read_json, write_json
from dagrpo_foreign.files import (
    Attempts,
    Inputs,
    drawn_prompts,
    latest,
    own_module,
    python_of,
    read_line,
    require_finished,
    run_check,
    take_outputs,
    train_missing_steps,
    write_inputs,
)
from dagrpo_foreign.nodes import Nodes, Start, log_of
from dagrpo_megatron.arguments import FILE as MODEL_ARGUMENTS
from dagrpo_megatron.backend import agent, command_check, grading, start
from dagrpo_megatron.backend.mapping import FORMAT, Files, arguments, command_line

MISTAKE = "mistake.txt"  # why a response cannot be graded
SAME = {
    "reward": "reward/mean",
    "grad_norm": "policy/grad_norm",
    "learning_rate": "policy/learning_rate",
    "length": "rollout/length_mean",
    "length_max": "rollout/length_max",
    "truncated": "rollout/truncated_fraction",
}
# As in Megatron-LM's scripts; tensor parallelism demands the first.
ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
    "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
    "NCCL_P2P_NET_CHUNKSIZE": "2097152",
}


def train_with_megatron_lm(run: TrainingRun, settings: Mapping[str, Any], report: Report, nodes: Nodes) -> None:
    """Train to the last step and write the outputs. Raises UserError if Megatron-LM refuses, TransientError if it dies or hangs."""
    folder, updates = run.state.resolve(), run.training.mini_batches  # of a step; Megatron-LM calls each an iteration
    checkpoints, mistake = folder / "checkpoints", folder / MISTAKE
    finished = latest(checkpoints) // updates
    attempts = Attempts(folder, partial(read_line, same=SAME, trainer="megatron_lm"))
    inputs = write_inputs(run, folder, FORMAT)

    def go_on(rows: list[Metrics]) -> list[Metrics]:
        attempt = attempts.new()
        job = write_agent_job(run, inputs, folder, finished, attempt)
        words = command(run, settings, inputs, folder, job)
        check_command(run, words, folder, job)
        first, *others = starts(run, nodes, words, job)
        program = Program(
            command=first.command,
            metrics=attempt,
            log=run.server_log,
            environment={**alone(), **first.environment},
            read=attempts.read,
            silent_seconds=60 * run.runtime.backend.silent_minutes,
        )
        mistake.unlink(missing_ok=True)
        try:
            with nodes.beside(others):
                return program.run(report, rows)
        except TransientError:  # a response that cannot be graded ends the program as a fault does
            if mistake.is_file():
                raise UserError(f"A response cannot be graded: {mistake.read_text()}.") from None
            raise

    rows = train_missing_steps(run, nodes, attempts, finished, report, go_on)
    finished = latest(checkpoints) // updates
    require_finished(run, finished, "Megatron-LM")
    weights = checkpoints / f"iter_{finished * updates:07d}"
    take_outputs(run, open_as(FORMAT, weights, inputs.model), weights, rows[:finished], checkpoints)


def write_agent_job(run: TrainingRun, inputs: Inputs, folder: Path, finished: int, attempt: Path) -> Path:
    """Write what start.py, the agent and the grading read: the prompts, and the order in which our own trainer would draw them."""
    prompts, job, graded = folder / "prompts.jsonl", folder / "agent.json", folder / "grading.json"
    rows = [
        {"index": each.index, "messages": list(each.row.prompt)}
        | ({"task": each.row.task} if len(run.train_splits) > 1 else {})
        for each in inputs.prompts
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {name: getattr(run, name).model_dump(mode="json") for name in ("rollout", "reward", "training")}
    files = {"model": str(inputs.model), "train_split": str(inputs.rows), "mistake": str(folder / MISTAKE)}
    write_json(graded, {**files, **sections})
    write_json(
        job,
        {
            "source": _source(run),
            "agent": agent.__file__,
            "prompts": str(prompts),
            "order": [prompt.index for prompt in drawn_prompts(run, inputs.prompts)],
            "drawn": finished * run.training.prompts_per_step,
            "grading": own_module(grading, graded),
            "max_new_tokens": run.rollout.max_new_tokens,
            "metrics": str(attempt),
            "updates": run.training.mini_batches,
        },
    )
    return job


def command(run: TrainingRun, settings: Mapping[str, Any], inputs: Inputs, folder: Path, job: Path) -> list[str]:
    """Return the arguments of train_rl.py: those that the model implies, and those of the run."""
    environment = folder / "environment.yaml"
    # JSON is YAML.
    write_json(environment, [{"agent_type": start.AGENT, "agent_args": {"job": str(job)}, "weight": 1.0}])
    files = Files(
        initial=inputs.model,
        tokenizer=padded_tokenizer(inputs, folder),
        environment=environment,
        checkpoints=folder / "checkpoints",
        begins_with_bos=inputs.prompts[0].token_ids[:1] == (load_tokenizer(inputs.model).bos_token_id,),
    )
    of_model = (inputs.model / MODEL_ARGUMENTS).read_text().split()
    # --pretrained-checkpoint implies it for the first start; given, each start would be the first.
    of_model.remove("--finetune")
    return [*of_model, *command_line(arguments(run, settings, run.seed, files))]


def check_command(run: TrainingRun, words: Sequence[str], folder: Path, job: Path) -> None:
    """Check the command line by Megatron-LM's own code. Raises UserError with its reason."""
    devices = run.runtime.training.processes
    given = {
        "source": _source(run),
        "environment": ENVIRONMENT,
        "arguments": words,
        "processes": devices * run.runtime.nodes,
        "devices": devices,
        "job": str(job),
        "tokenizer": words[words.index("--tokenizer-model") + 1],
    }
    found = run_check(run, command_check.__file__, given, folder, "Megatron-LM")
    say(
        f"Megatron-LM {found['version']}: command line valid, {found['data_parallel']} replicas, {found['sequences']} sequences an update"
    )


def padded_tokenizer(inputs: Inputs, folder: Path) -> Path:
    """Return a folder with the tokenizer and a padding token that ends no text: Megatron-LM leaves padding out of the loss.

    Raises UserError if the tokenizer has no other special token.
    """
    tokenizer = load_tokenizer(inputs.model)
    if tokenizer.pad_token_id not in (None, tokenizer.eos_token_id):
        return inputs.model
    used = {token for prompt in inputs.prompts for token in prompt.token_ids}
    used |= {tokenizer.eos_token_id, tokenizer.bos_token_id}
    free = sorted((number, token) for token, number in tokenizer.get_added_vocab().items() if number not in used)
    if not free:
        raise UserError(
            f"the tokenizer in {inputs.model} has no special token beside its end token, and Megatron-LM needs one for padding: "
            "choose a model whose tokenizer has a padding token"
        )
    copy = folder / "tokenizer"
    copy.mkdir(exist_ok=True)
    for path in inputs.model.iterdir():
        if path.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copy(path, copy)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (copy / name).is_file():
            write_json(copy / name, {**read_json(copy / name), "pad_token": free[-1][1]})
    return copy


def _source(run: TrainingRun) -> str:
    assert run.runtime.backend.source is not None, "refused when parameters were read"
    return str(Path(run.runtime.backend.source).resolve())


def starts(run: TrainingRun, nodes: Nodes, words: Sequence[str], job: Path) -> list[Start]:
    """Return torchrun as each node starts it: alone, or to meet the others at the first one's address."""
    paths = os.pathsep.join([_source(run), *filter(None, [os.environ.get("PYTHONPATH")])])
    torchrun = [python_of(run), "-m", "torch.distributed.run", f"--nproc-per-node={run.runtime.training.processes}"]
    first, meeting = nodes.addresses[0], ["--standalone"]
    if nodes.others:
        port = free_port(first)
        meeting = [f"--nnodes={run.runtime.nodes}", f"--master-addr={first}", f"--master-port={port}"]
    return [
        Start(
            what=f"torchrun of node {node}",
            command=[*torchrun, *meeting, *([f"--node-rank={node}"] if nodes.others else []), start.__file__, *words],
            log=log_of(run, node),
            environment={**ENVIRONMENT, "PYTHONPATH": paths, start.JOB: str(job), start.ADDRESS: address},
        )
        for node, address in enumerate(nodes.addresses)
    ]
