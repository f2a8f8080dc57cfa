"""Run of verl: files, checks, start, checkpoint."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from dagrpo.checkpoints.convert import HUGGINGFACE
from dagrpo.checkpoints.lora_layers import NAME, PREFIX, low_rank_update
from dagrpo.checkpoints.source import open_as
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import TransientError, UserError
from dagrpo.engine.sglang.digests import LONGER
from dagrpo.models.pictures import takes_pictures
from dagrpo.trainer.backend_files import Metrics, Program, write_job
from dagrpo.trainer.config.lora import Lora, untrained_tower
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.utils.child_variables import alone
from dagrpo.utils.console import say
from dagrpo.utils.files import remove
from dagrpo.utils.tables import read_parquet, write_parquet
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
from dagrpo_foreign.nodes import SECONDS_TO_SEE_A_FILE, Nodes, log_of
from dagrpo_verl import attempt_process, composition
from dagrpo_verl.cluster import Cluster, access, ray_over
from dagrpo_verl.draws import DRAWS, Comparison
from dagrpo_verl.mapping import Files, configuration, has_our_order, has_several_turns, require_no_adapted_experts

COLUMNS = [
    "data_source",
    "prompt",
    "reward_model",
    "extra_info",
]  # not agent_name, which would choose one of verl's loops
PLANNED = "planned.jsonl"  # the rows that each step will draw
CONFIGURATION = "verl"  # name of the file with the whole configuration, without its suffix
ADDRESS, CORES = (f"ray_kwargs.ray_init.{name}" for name in ("address", "num_cpus"))
# Of these verl's schema is open.
NEW_KEYS = (ADDRESS, "actor_rollout_ref.rollout.custom.", "actor_rollout_ref.model.override_config.")
SAME = {
    "critic/score/mean": "reward/mean",
    "actor/grad_norm": "policy/grad_norm",
    "actor/lr": "policy/learning_rate",
}
BASE = "base_layer."  # in the names that PEFT gives to the weights of adapted layers
LENGTHS = {  # verl's count the results of tools and the words of users, too
    "response_length/mean": "rollout/length_mean",
    "response_length/max": "rollout/length_max",
}


def train_with_verl(run: TrainingRun, settings: Mapping[str, Any], report: Report, nodes: Nodes) -> None:
    """Train to the last step and write the outputs. Raises UserError if verl refuses, TransientError if it dies or hangs."""
    folder = run.state.resolve()
    checkpoints = folder / "checkpoints"
    inputs = write_inputs(run, folder)
    _require_trainable_adapter(run, inputs.model)
    several_turns = has_turns(run, inputs)
    files, in_our_order = files_of(run, inputs, folder), has_our_order(run.shares, run.training)
    keys = configuration(run, settings, run.seed, files, several_turns=several_turns, in_our_order=in_our_order)
    found = check(run, keys, folder)
    run.facts["verl"] = {"version": found["verl"], "draws": found["draws"]}
    finished = latest(checkpoints)
    comparison = Comparison(
        planned=folder / PLANNED if found["draws"] else None,
        log=folder / DRAWS,
        samples=run.training.samples_per_prompt,
        max_excluded=run.rollout.agent.max_excluded,
        finished=finished,
        patience=SECONDS_TO_SEE_A_FILE if nodes.others else 0.0,
        tasks=tuple(run.train_splits) if len(run.train_splits) > 1 else (),
    )
    comparison.forget_later_steps()

    def compare(step: int, metrics: Metrics) -> None:
        comparison.require(step)
        report(step, metrics)

    same = SAME if several_turns else SAME | LENGTHS

    def read(line: Any) -> tuple[int, Metrics]:
        step, metrics = read_line(line, same=same, trainer="verl")
        return step, {**metrics, **comparison.of_tasks(step)}

    attempts = Attempts(folder, read)

    def go_on(rows: list[Metrics]) -> list[Metrics]:
        _require_same_processes(checkpoints, finished, run.runtime.training.processes * run.runtime.nodes)
        remove_others(checkpoints, finished)
        try:
            return _run_verl(run, nodes, attempts, keys.get(CORES), compare, rows)
        except TransientError:
            comparison.require_graded()
            comparison.require_any_learned()
            raise

    rows = train_missing_steps(run, nodes, attempts, finished, compare, go_on)
    finished = latest(checkpoints)
    require_finished(run, finished, "verl")
    weights = checkpoints / f"global_step_{finished}" / "actor" / HUGGINGFACE
    take_outputs(run, trained_weights(weights, run.training.lora, inputs.model), weights, rows[:finished], checkpoints)


def files_of(run: TrainingRun, inputs: Inputs, folder: Path) -> Files:
    """Write the columns that verl reads and the parameters of the attempts, and return the files and folders of the run.

    Of a mixture with shares the rows are those of all steps, as our own trainer draws them.
    """
    rows, job = folder / "rows.parquet", folder / "attempts.json"
    table = read_parquet(inputs.rows).select(COLUMNS)
    if has_our_order(run.shares, run.training):
        places = {prompt.index: place for place, prompt in enumerate(inputs.prompts)}
        table = table.take([places[prompt.index] for prompt in drawn_prompts(run, inputs.prompts)])
    write_parquet(rows, table)
    write_job(run, job)
    command = own_module(attempt_process, job)
    return Files(model=inputs.model, rows=rows, attempts=command, checkpoints=folder / "checkpoints")


def trained_weights(folder: Path, lora: Lora, initial: Path) -> Tensors:
    """Return the weights that verl has saved, with the adapter added, if one was trained. `initial`: the folder that it began with."""
    saved = open_as(HUGGINGFACE, folder)
    if not lora.is_on:
        return saved
    return MergedAdapter(saved, lora.alpha / lora.rank, open_as(HUGGINGFACE, initial).specs)


def _require_trainable_adapter(run: TrainingRun, model: Path) -> None:
    """Raise UserError for an adapter that verl does not train as the parameters say."""
    lora = run.training.lora
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    require_no_adapted_experts(lora, config.get_text_config())
    if takes_pictures(model) and lora.is_on and run.training.vision == "trained":
        raise UserError(untrained_tower("training"))


def has_turns(run: TrainingRun, inputs: Inputs) -> bool:
    """Return True if an attempt at any of the prompts may have several turns."""
    return has_several_turns(run.rollout, offered=any(each.tools or each.row.interaction for each in inputs.prompts))


def check(run: TrainingRun, keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check the configuration by verl's own code, and return what it has found. Raises UserError with its reason."""
    job = {
        "overrides": [override(name, value) for name, value in keys.items()],
        "configuration": str(folder / f"{CONFIGURATION}.yaml"),
        "planned": str(folder / PLANNED),
    }
    found = run_check(run, composition.__file__, job, folder, "verl")
    draws = f"prompts {found['draws'][:12]}" if found["draws"] else "prompts not known before: they depend on rewards"
    say(f"verl {found['verl']}: configuration valid, {found['rows']} rows, {draws}")
    return found


def override(name: str, value: Any) -> str:
    """Return a key and its value as Hydra's override grammar has them: `++` sets a key that verl may not have."""
    sign = "++" if name.startswith(NEW_KEYS) else ""
    return f"{sign}{name}={_spell(value)}"


def _spell(value: Any) -> str:
    if isinstance(value, str):
        # Hydra takes backslashes for escapes before a quote alone.
        return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value) + '"'
    if isinstance(value, Sequence):
        return f"[{','.join(map(_spell, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}: {_spell(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def command(python: str, folder: Path, ray: str | None = None) -> list[str]:
    """Return the command that starts verl with the checked configuration in a folder. `ray`: address of a Ray that it is to join."""
    program = [python, "-m", "verl.trainer.main_ppo", f"--config-path={folder}", f"--config-name={CONFIGURATION}"]
    joins = [] if ray is None else [override(ADDRESS, ray), override(CORES, None)]  # a Ray that is there has its cores
    return [*program, override("hydra.run.dir", str(folder)), override("hydra.output_subdir", None), *joins]


def variables(attempt: Path) -> dict[str, str]:
    """Return the variables of verl's processes.

    SGLang 0.5.12 caches what a vision tower makes of a picture, and nothing empties that cache, not even new weights.
    """
    return {"VERL_FILE_LOGGER_PATH": str(attempt), "SGLANG_VLM_CACHE_SIZE_MB": "0"}


def environment(attempt: Path) -> dict[str, str]:
    """Return the environment of verl, which is to join no Ray but one that its configuration names."""
    return {name: value for name, value in alone().items() if name != "RAY_ADDRESS"} | variables(attempt)


def _run_verl(
    run: TrainingRun, nodes: Nodes, attempts: Attempts, cores: int | None, report: Report, rows: list[Metrics]
) -> list[Metrics]:
    """Return the metrics of all steps, of a verl that starts its own Ray, or on several nodes joins ours."""
    attempt, folder, python = attempts.new(), attempts.folder, python_of(run)

    def follow(ray: str | None, access_to_ray: Mapping[str, str], patience: float) -> list[Metrics]:
        program = Program(
            command=command(python, folder, ray),
            metrics=attempt,
            log=run.server_log,
            environment={**environment(attempt), **access_to_ray},
            read=attempts.read,
            silent_seconds=60 * run.runtime.backend.silent_minutes,
            last_step=run.training.steps,
            patience=patience,
        )
        return program.run(report, rows)

    if not nodes.others:
        return follow(None, {}, 0.0)
    token = access(folder)
    cluster = Cluster(
        python=python,
        gpus=run.runtime.training.processes,
        cores=cores,
        patience=run.runtime.node_timeout,
        environment={**variables(attempt), **token, "RAY_ADDRESS": ""},
        logs=tuple(log_of(run, node) for node in range(run.runtime.nodes)),
        folder=folder,
    )
    with ray_over(nodes, cluster) as place:
        return follow(place, token, SECONDS_TO_SEE_A_FILE)  # Ray may start verl's trainer on any node


def remove_others(checkpoints: Path, finished: int) -> None:
    """Remove the checkpoints of all steps but one: verl forgets at a start those that it has written before."""
    for folder in checkpoints.glob("global_step_*"):
        if folder.name != f"global_step_{finished}":
            remove(folder)


def _require_same_processes(checkpoints: Path, finished: int, processes: int) -> None:
    for path in (checkpoints / f"global_step_{finished}" / "actor").glob("model_world_size_*_rank_0.pt"):
        before = int(path.name.split("_")[3])
        if before != processes:
            raise UserError(
                f"verl has saved the state of step {finished} with {before} processes, and resumes with as many alone, not with "
                f"{processes}: let runtime.nodes x runtime.training.processes be {before}."
            )


class MergedAdapter:
    """Tensors under the names of the model without an adapter, each weight with its update added in float32.

    verl saves PEFT's own names: `base_model.model.<layer>.base_layer.weight` beside `<layer>.lora_A.default.weight`.
    """

    def __init__(self, tensors: Tensors, scale: float, names: Collection[str]) -> None:
        """Wrap the tensors of a checkpoint. `scale`: alpha / rank; `names`: of the model, which PEFT saves as transformers has them."""
        self._tensors = tensors
        self._scale = scale
        self._saved = {
            _published(name.removeprefix(PREFIX).replace(f".{BASE}", "."), names): name
            for name in tensors.specs
            if ".lora_" not in name
        }
        self.specs = {name: tensors.specs[saved] for name, saved in self._saved.items()}

    def read(self, name: str) -> Tensor:
        """Return a tensor, in its saved dtype."""
        saved = self._saved[name]
        tensor, layer = self._tensors.read(saved), saved.removesuffix(f"{BASE}weight")
        down, up = (f"{layer}lora_{matrix}.{NAME}.weight" for matrix in "AB")
        if layer == saved or down not in self._tensors.specs:
            return tensor
        update = low_rank_update(self._tensors.read(up), self._tensors.read(down), self._scale)
        return (tensor.float() + update).to(tensor.dtype)


def _published(name: str, names: Collection[str]) -> str:
    """Return a name as checkpoints of Qwen2.5-VL have it, unless it is among `names`."""
    parts = next(((short, long) for short, long in LONGER if name not in names and name.startswith(long)), ("", ""))
    return parts[0] + name.removeprefix(parts[1])
