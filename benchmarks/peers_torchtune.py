"""Steps of torchtune's GRPO recipe for benchmarks/peers.py, as lines of JSON.

Its environment, the PyPI release not having the recipe's modules (torchvision is left out, or of the same index as torch):

    python -m venv PLACE
    PLACE/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    PLACE/bin/pip install torchao==0.18.0 transformers datasets==4.0.0 \\
        git+https://github.com/meta-pytorch/torchtune@bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1
    python -m benchmarks.peers MODEL --peer torchtune --peer-python PLACE/bin/python

The recipe is as it stands, FSDP in one process over gloo, but for: our questions and reward; padding on the left, as it
samples the first token after the last column; no statistics of a GPU's memory; and a reference model that costs nothing, as
its weight in the loss is 0. `rest` is mostly its forward pass for the sampled tokens' probabilities.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets  # noqa: F401  # both look for torchvision when they load: before its stand-in is there
import torch
from benchmarks.peers_sums import by_answer, by_length, problem, rendered, tree_processor_seconds
from omegaconf import OmegaConf
from transformers import AutoTokenizer


class Absent(ModuleType):
    """Stand-in for torchvision, which torchtune imports for pictures."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def recipe_module() -> Any:
    """Import the recipe's file, which torchtune installs but lets nobody import by its package."""
    if importlib.util.find_spec("torchvision") is None:
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            sys.modules[name] = Absent(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)
            sys.modules[name].__path__ = []
    package = importlib.util.find_spec("recipes")
    if package is None or package.origin is None:
        raise SystemExit(f"{sys.executable} has no recipes of torchtune: install it as the head of {__file__} says")
    sys.path.insert(0, str(Path(package.origin).parent / "dev"))
    return importlib.import_module("grpo_full_finetune_distributed")


class Tokenizer:
    """Tokenizer as the recipe asks for it. Padding is token 0, which its sampler writes after a stop token."""

    pad_id = 0

    def __init__(self, path: str) -> None:
        self.inner = AutoTokenizer.from_pretrained(path)
        self.eos_id = self.inner.eos_token_id
        self.stop_tokens = [self.eos_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""
        return str(self.inner.decode(tokens, skip_special_tokens=True))


def questions(tokenizer: Tokenizer, sums: str) -> list[dict[str, Any]]:
    """Render the sums as a data set of the recipe."""
    rows = [problem(terms) for terms in json.loads(sums)]
    texts = [rendered(tokenizer.inner, row["prompt"]) for row in rows]
    tokens = tokenizer.inner(texts, add_special_tokens=False).input_ids
    return [{"tokens": each, "answer": row["truth"]} for each, row in zip(tokens, rows, strict=True)]


def padded(batch: Sequence[dict[str, Any]], padding_idx: int) -> dict[str, Any]:
    """Stack questions so that all end in the last column."""
    longest = max(len(each["tokens"]) for each in batch)
    rows = [[padding_idx] * (longest - len(each["tokens"])) + each["tokens"] for each in batch]
    return {"tokens": torch.tensor(rows), "answers": [each["answer"] for each in batch]}


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's configuration: that of its 3B_full_grpo.yaml without schedule, checkpointing and penalty."""
    model = json.loads(Path(given["model"], "config.json").read_text())
    qwen, heads = model["model_type"] == "qwen2", model["num_attention_heads"]
    rope = model.get("rope_parameters") or model
    checkpoint = {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": given["model"],
        "checkpoint_files": [each.name for each in sorted(Path(given["model"]).glob("*.safetensors"))],
        "output_dir": str(Path(given["folder"], "theirs")),
        "model_type": "QWEN2",  # Llama's names and layout are the same
    }
    return {
        "device": "cpu",
        "dtype": "bf16" if given["dtype"] == "bfloat16" else "fp32",
        "output_dir": given["folder"],
        "seed": given["seed"],
        "shuffle": False,
        "resume_from_checkpoint": False,
        "checkpointer": checkpoint,
        "ref_checkpointer": checkpoint,
        "tokenizer": {"_component_": "__main__.Tokenizer", "path": given["model"]},
        "dataset": {"_component_": "__main__.questions", "sums": json.dumps(given["sums"])},
        "collate_fn": "__main__.padded",
        "model": {
            "_component_": "torchtune.models.qwen2.qwen2",
            "vocab_size": model["vocab_size"],
            "num_layers": model["num_hidden_layers"],
            "num_heads": heads,
            "num_kv_heads": model["num_key_value_heads"],
            "embed_dim": model["hidden_size"],
            "head_dim": model.get("head_dim"),
            "intermediate_dim": model["intermediate_size"],
            "max_seq_len": min(model["max_position_embeddings"], 4096),
            "norm_eps": model["rms_norm_eps"],
            "rope_base": rope["rope_theta"],
            "tie_word_embeddings": model["tie_word_embeddings"],
            **{f"{each}_proj_bias": qwen for each in "qkv"},
        },
        "metric_logger": {"_component_": "torchtune.training.metric_logging.StdoutLogger"},
        "log_every_n_steps": given["steps"] + 1,
        "optimizer": {
            "_component_": "torch.optim.AdamW",
            "lr": given["learning_rate"],
            "weight_decay": 0.0,
            "fused": True,
        },
        "loss": {"_component_": "torchtune.dev.grpo.loss.GRPOSimpleLoss", "kl_coeff": 0.0, "epsilon": 0.2},
        "clip_grad_norm": 1.0,
        "batch_size": given["prompts"],
        "forward_batch_size": given["prompts"],
        "grpo_samples": given["samples"],
        "max_generated_tokens": given["tokens"],
        "temperature": 1.0,
        "top_k": None,
        "ppo_epochs": 1,
        "epochs": 1,
        "num_steps": given["steps"],
        "save_every_n_epochs": 1 if given["learn"] else 2,
    }


def timed(recipe: Any, given: dict[str, Any]) -> Any:
    """Return the recipe's class with clocks around its parts, and with our reward."""
    reward = by_answer if given["learn"] else by_length
    noted: dict[str, float] = {}
    sample = recipe.generate

    def generate(**options: Any) -> Any:
        start = time.perf_counter()
        result = sample(**options)
        noted["generation"] = time.perf_counter() - start
        return result

    def rewards(tokenizer: Tokenizer, completions: torch.Tensor, answers: list[str], device: Any) -> Any:
        pairs = zip(completions, answers, strict=True)
        each = torch.tensor([[[reward(tokenizer.decode(row), truth)] for row in group] for group, truth in pairs])
        return each, each, {}

    class Timed(recipe.GRPOFullFinetuneRecipeDistributed):  # type: ignore[misc]  # torchtune has no types
        """Recipe that prints each step."""

        def generate_trajectory_batched(self, *inputs: Any) -> Any:
            noted.update(start=time.perf_counter(), processor=tree_processor_seconds())
            return super().generate_trajectory_batched(*inputs)

        def grpo_step(self, *inputs: Any) -> Any:
            noted["scored"] = time.perf_counter()
            return super().grpo_step(*inputs)

        def cleanup_after_step(self, trajectory: Any, stats: Any) -> None:
            now = time.perf_counter()
            figures = {
                "wall": now - noted["start"],
                "processor": tree_processor_seconds() - noted["processor"],
                "generation": noted["generation"],
                "update": now - noted["scored"],
                "weight_sync": 0.0,
                "rest": noted["scored"] - noted["start"] - noted["generation"],
                "tokens": float((~trajectory.response_padding_masks).sum(-1).float().mean()),
            }
            print(json.dumps(figures), flush=True)

    recipe.generate, recipe.batched_rewards = generate, rewards
    for name in ("get_memory_stats", "log_memory_stats", "cleanup_before_training"):
        setattr(recipe.training, name, lambda *inputs, **options: None)
    return Timed


def main() -> None:
    """Train with the settings, which are JSON."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    recipe = recipe_module()
    configuration = OmegaConf.create(settings(given))
    run = timed(recipe, given)(cfg=configuration)
    run.setup(cfg=configuration)
    run._ref_model = lambda tokens, **options: torch.zeros(1).expand(*tokens.shape, configuration.model.vocab_size)
    run.train()
    run.cleanup()
    if given["learn"]:
        Path(given["folder"], "theirs", "epoch_0").rename(Path(given["folder"], "theirs", "trained"))


if __name__ == "__main__":
    main()
