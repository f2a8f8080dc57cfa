"""Parameters of a script: its columns, and the settings beside them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from dagrpo.config.scripts.table import Script
from dagrpo.core.errors import nearest

# Rows of a train split, copies not counted, by task: what an epoch is.
ROWS = {"gsm8k": 7473, "geo3k": 2101, "dapo": 17_917, "search-r1": 169_615}
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
    nested: dict[str, Any] = {"use": script.use.split()}
    for key, value in values.items():
        section = nested
        *path, last = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return nested


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
    """Return servers of the script's size; of one GPU for pictures, whose model SGLang cannot divide."""
    hardware = script.use.split()[-1]
    gpus = int(hardware.partition("_x")[2] or 1)
    size = re.search(r"TP(\d+)" if script.engine == "megatron" else r"(\d+)/", f"{script.engine} {script.training}")
    if size is None:
        raise script.fault("engine", "write the engine, GPUs of a server/share of memory")
    ranks = 1 if script.data.startswith("geo3k") else min(int(size[1]), gpus)
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
