"""Scripts of verl and Megatron-LM as presets, from the table presets/scripts.tsv."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import with_keys
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.escape import brief

TABLE = "scripts.tsv"  # under presets/: one script a line
# Why a script is no preset: the words of the column `reason`.
REASONS = {
    "adapter": "it continues the training of an adapter; training begins with whole weights here",
    "broken": "it sets a switch to a variable, or the number of GPUs, that nothing defines",
    "code": "the model needs its own Python code, which is never run here",
    "family": "the trainer and the engine have not been tried with this family",
    "machines": "weights and optimizer exceed the 8 GPUs of one machine, for which the presets are",
    "mamba": "the model has Mamba layers, which the trainer does not know",
    "one_sample": "one sample per prompt, whose advantage is always 0: nothing is learned",
    "pickle": "the weights are published as a pickle, which is never read here",
    "pictures": "pictures are known for Qwen2.5-VL and Qwen3-VL without experts",
    "unpublished": "the weights are not published",
    "video": "its prompts have videos",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A line of the table: what the script sets, and what it is here."""

    place: str  # file and line, for messages
    preset: str
    source: str  # path below examples/
    state: str  # of the repository: J, P, M (verl), A (Megatron-LM)
    model: str
    data: str  # train, or train>test
    gpus: str  # nodes x GPUs
    engine: str
    training: str
    batch: str  # prompts per step / per update / per GPU and pass
    n: str
    lr: str
    kl: str
    length: str  # prompt/response, or both together
    epochs: str  # epochs/save every/test every; no epochs: those of `special`, or the task's steps
    special: str
    use: str  # model, task and hardware here; "": no preset
    reason: str  # key of REASONS
    score: str  # published

    def fault(self, column: str, how: str) -> UserError:
        """Return an error that names the line and the column."""
        return UserError(f"{self.place} ({self.preset}): `{column}` is {brief(getattr(self, column))}: {how}.")

    def match(self, column: str, pattern: str, how: str) -> tuple[str | None, ...]:
        """Return the groups of a column's text. Raises UserError if the pattern does not describe all of it."""
        found = re.fullmatch(pattern, getattr(self, column))
        if found is None:
            raise self.fault(column, f"write {how}")
        return found.groups()

    @property
    def specials(self) -> list[str]:
        """List the settings beside the columns."""
        return [each for each in self.special.split(", ") if each]


def scripts(folder: Path) -> dict[str, Script]:
    """Return the lines of the table by preset; none without a table."""
    path = folder / TABLE
    if not path.is_file():
        return {}
    header, *lines = (line.split("\t") for line in path.read_text().splitlines())
    rows = (dict(zip(header, cells, strict=True)) for cells in lines)
    return {row["preset"]: Script(place=f"{path}, line {number}", **row) for number, row in enumerate(rows, 2)}


def presets(folder: Path) -> dict[str, Script]:
    """Return the scripts that are presets, by name."""
    return {name: script for name, script in scripts(folder).items() if script.use}


# Rows of a train split, copies not counted, by task: what an epoch is.
ROWS = {"gsm8k+math": 14_973, "gsm8k": 7473, "geo3k": 2101, "dapo": 17_917, "search-r1": 169_615}
# Settings of speed and place, which change results to rounding at most.
PLACE = re.compile(
    r"bridge|fused|eager|DeepEP|CPU Adam|dist ckpt|recompute full|act\. offload|no resume|Megatron-FSDP|fsdp\d+|profiler \w+"
    r"|trace mlflow|data class \S+|gen [ED]P\d+|over_sample \S+|attn ascend|IS \(no level\) \S+"
)
# What no parameter expresses, and what happens here instead.
DIFFERENCES = {
    "no shuffle": "prompts are shuffled",
    "curriculum sampler": "no sampler: verl's was random",
    "RS token_k1 0.6_1.6": "no mask by the k1 ratio of a token",
    "betas 0.9/0.95": "AdamW's betas 0.9, 0.999",
    "rollout fp8": "rollouts in bfloat16",
    "fp16": "bfloat16",
    "any environment": "the user's environment there",
    "fine-tuned before": "Qwen3-4B, without the fine-tuning",
}
PASS = 16_384  # tokens of a forward pass, at most: those of the hardware presets
ENTROPY, CLIP = "algorithm.terms.entropy.coefficient", "algorithm.loss."
Settings = dict[str, Any]  # dotted parameter -> value
# What parameters express: pattern -> parameters.
SETTINGS: Mapping[str, Callable[..., Settings]] = {
    r"clip ([\d.e-]+)/([\d.e-]+)(?:/([\d.]+))?": lambda low, high, dual: {
        CLIP + "clip_low": float(low),
        CLIP + "clip_high": float(high),
        CLIP + "dual_clip": None if dual is None else float(dual),
    },
    r"gspo": lambda: {CLIP + "name": "gspo", "algorithm.aggregation": "default"},
    r"((?:seq-mean-)?token-mean)": lambda name: {"algorithm.aggregation": name},
    r"IS token ([\d.]+)_([\d.]+)": lambda low, high: {
        "algorithm.correction": {"name": "token_masked", "minimum": float(low), "maximum": float(high)}
    },
    r"IS sequence ([\d.]+)": lambda most: {
        "algorithm.correction": {"name": "sequence_truncated", "maximum": float(most)}
    },
    r"no std": lambda: {"algorithm.advantage.normalize_by_std": False},
    r"overlong (\d+)": lambda tokens: {"reward.components.overlong.buffer": int(tokens)},
    r"reward file gsm8k_toolcall_shaping\.py": lambda: {
        "reward.components.accuracy.wrong": 0.1,
        "reward.components.successful_call.weight": 0.1,
    },
    r"reward file retool\.py": lambda: {"reward.components.tool_effort.per_turn": 0.1},
    r"LoRA r(\d+) a(\d+)(?: merged| no vision)?": lambda rank, alpha: {
        "training.lora": {"rank": int(rank), "alpha": int(alpha)},
        "training.vision": "frozen",
    },
    r"vision frozen": lambda: {"training.vision": "frozen"},
    r"T ([\d.]+)": lambda value: {"rollout.temperature": float(value)},
    r"val T([\d.]+) p([\d.]+)": lambda value, p: {
        "evaluation.sampling.temperature": float(value),
        "evaluation.sampling.top_p": float(p),
    },
    r"val n (\d+)": lambda count: {"evaluation.sampling.samples": int(count)},
    r"ctx (\d+)": lambda tokens: {"rollout.agent.max_tokens": int(tokens)},
    r"asst turns (\d+)": lambda turns: {"rollout.agent.max_turns": int(turns)},
    # A user turn, a result or an answer of the user, is followed by one more of the policy.
    r"user turns (\d+)": lambda turns: {"rollout.agent.max_turns": int(turns) + 1},
    r"tool (gsm8k|geo3k|code|search)": lambda _: {},  # the task has it
    r"interaction": lambda: {"rollout.agent.max_turns": 6},  # five user turns by its configuration
    r"seed (\d+)": lambda seed: {"experiment.seeds": [int(seed)]},
    r"(\d+) steps": lambda steps: {"training.steps": int(steps)},
    r"attn (flashinfer|triton|fa3)": lambda name: {"runtime.engine.attention_backend": name},
}


def sections(script: Script) -> dict[str, Any]:
    """Return a script as a preset: the parts that it uses, and its sections. Raises UserError for what no parameter expresses."""
    values = _batch(script) | _rate(script) | _divergence(script) | _lengths(script) | _engine(script) | _reward(script)
    for special in script.specials:
        values |= _of(script, special)
    if values[CLIP + "name"] == "gspo":
        del values[CLIP + "dual_clip"]
    values |= _schedule(script, values)
    warmup = values["training.learning_rate_warmup_steps"]
    steps = int(float(warmup[1:]) * values["training.steps"]) if warmup[0] == "r" else int(warmup)
    values["training.learning_rate_warmup_steps"] = (
        steps * values["training.mini_batches"]
    )  # verl counts steps, not updates
    return with_keys({"use": script.use.split()}, values)


def _of(script: Script, special: str) -> Settings:
    if special in DIFFERENCES or PLACE.fullmatch(special):
        return {}
    for pattern, parameters in SETTINGS.items():
        if found := re.fullmatch(pattern, special):
            return parameters(*found.groups())
    raise script.fault("special", f"`{special}` is unknown, {nearest(special, [*DIFFERENCES, *SETTINGS])}")


def _batch(script: Script) -> Settings:
    pattern = r"(\d+)/(\d+)/(?:(\d+)|dyn(\d*))(?: cap\d+)?"
    step, update, sequences, tokens = script.match(
        "batch", pattern, "prompts per step/per update/per pass, or dyn and tokens of a pass"
    )
    prompts, (samples,) = int(str(step)), script.match("n", r"(\d+)", "samples per prompt")
    of_pass = int(tokens or PASS) if sequences is None else int(sequences) * sum(map(int, script.length.split("/")))
    return {
        "experiment.name": script.preset.replace("/", "_"),
        "training.prompts_per_step": prompts,
        "training.mini_batches": prompts // int(str(update)),
        "training.samples_per_prompt": int(str(samples)),
        "runtime.training.micro_batch_tokens": min(PASS, of_pass),
    }


def _rate(script: Script) -> Settings:
    rate, warmup, decay = script.match(
        "lr",
        r"([\d.e-]+)(?: wu(\d+|r[\d.]+))?(?: wd([\d.]+))?",
        "a rate, wu and steps (wur: a share of all), wd and weight decay",
    )
    return {
        "training.learning_rate": float(str(rate)),
        "training.learning_rate_warmup_steps": warmup or "0",
        "training.weight_decay": float(decay or 0.01),
    }


def _divergence(script: Script) -> Settings:
    kl, entropy = script.match("kl", r"(off|[\d.]+)(?: ent([\d.]+))?", "off or a coefficient, and ent with one")
    term = {} if entropy is None else {ENTROPY: float(entropy)}
    return term | {
        "algorithm.kl.coefficient": 0.0 if kl == "off" else float(str(kl)),
        "algorithm.advantage": {"name": "grpo", "normalize_by_std": True},
        "algorithm.aggregation": "token-mean",
        "algorithm.correction": {"name": "none"},
        CLIP + "name": "ppo_clip",
        CLIP + "clip_low": 0.2,
        CLIP + "clip_high": 0.2,
        CLIP + "dual_clip": 3.0,
    }


def _lengths(script: Script) -> Settings:
    first, second = script.match("length", r"(\d+)(?:/(\d+))?", "tokens of prompt/response, or of both")
    whole = int(str(first)) + int(second or 0)
    prompt = min(2048, whole // 4) if second is None else int(str(first))
    return {
        "data.max_prompt_tokens": prompt,
        "training.max_prompt_tokens": prompt,
        "rollout.max_new_tokens": whole - prompt,
        "rollout.agent.max_tokens": whole,
        "evaluation.sampling.max_new_tokens": whole - prompt,
    }


def _engine(script: Script) -> Settings:
    """Return servers of the script's size; of one GPU for models of pictures, which SGLang cannot divide."""
    hardware = script.use.split()[-1]
    gpus = int(hardware.partition("_x")[2] or 1)
    size = re.search(r"TP(\d+)" if script.engine == "megatron" else r"(\d+)/", f"{script.engine} {script.training}")
    if size is None:
        raise script.fault("engine", "write the engine, GPUs of a server/share of memory")
    ranks = 1 if "-VL-" in script.model else min(int(size[1]), gpus)
    return {"runtime.engine.tensor_parallel": ranks, "runtime.engine.replicas": gpus // ranks}


def _reward(script: Script) -> Settings:
    """Return what the data set changes: DAPO's reward of -1, the test set, and a chat template with tools."""
    values: Settings = {}
    if script.data.startswith("DAPO"):
        values |= {f"reward.components.accuracy.{verdict}": -1.0 for verdict in ("wrong", "missing", "unverifiable")}
    if script.data.endswith(">MATH"):
        values |= {"experiment.evaluate": ["math"], "experiment.tasks": ["gsm8k", "math"]}
    if "tool geo3k" in script.specials:
        values["model.chat_template"] = "qwen2_5_vl_tools"
    return values


def _schedule(script: Script, values: Settings) -> Settings:
    epochs, save, test = script.match(
        "epochs", r"(\d*)/(-1|\d+)/(-1|\d+)", "epochs/save every/test every, -1 for never"
    )
    schedule: Settings = {}
    if int(str(save)) > 0:
        schedule["runtime.training.save_every"] = int(str(save))
    if epochs and "training.steps" not in values:
        rows = next(count for task, count in ROWS.items() if script.data.lower().startswith(task))
        schedule["training.steps"] = int(epochs) * (rows // values["training.prompts_per_step"])
    if 0 < int(str(test)) < (values | schedule).get("training.steps", 0):
        schedule["training.evaluate_every"] = int(str(test))
    return schedule
