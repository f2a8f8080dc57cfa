"""Models that Megatron-LM's examples/rl train, recognised by their sizes."""

from dataclasses import dataclass

from dagrpo_megatron.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Model of a recipe, identified by its architecture and sizes. `tokenizer` is a name on the hub."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    experts: int = 0
    tokenizer: str

    def has_sizes_of(self, config: ModelConfig) -> bool:
        """Return True for this model or one that was trained from it: the vocabulary may differ."""
        sizes = ("layers", "hidden", "ffn", "heads", "groups", "experts")
        same = all(getattr(self, size) == getattr(config.shape, size) for size in sizes)
        return same and self.architecture in config.family.architectures


QWEN25_32B = PublishedModel(
    architecture="Qwen2ForCausalLM",
    layers=64,
    hidden=5120,
    ffn=27648,
    heads=40,
    groups=8,
    tokenizer="unsloth/Qwen2.5-32B",  # the original names a wrong padding token
)
QWEN25_3B = PublishedModel(
    architecture="Qwen2ForCausalLM",
    layers=36,
    hidden=2048,
    ffn=11008,
    heads=16,
    groups=2,
    tokenizer="unsloth/Qwen2.5-3B",
)
QWEN25_MATH_7B = PublishedModel(
    architecture="Qwen2ForCausalLM",
    layers=28,
    hidden=3584,
    ffn=18944,
    heads=28,
    groups=4,
    tokenizer="unsloth/Qwen2.5-Math-7B",
)
R1_DISTILL_QWEN_7B = PublishedModel(
    architecture="Qwen2ForCausalLM",
    layers=28,
    hidden=3584,
    ffn=18944,
    heads=28,
    groups=4,
    tokenizer="unsloth/DeepSeek-R1-Distill-Qwen-7B",
)
QWEN3_4B = PublishedModel(
    architecture="Qwen3ForCausalLM",
    layers=36,
    hidden=2560,
    ffn=9728,
    heads=32,
    groups=8,
    tokenizer="Qwen/Qwen3-4B",
)
QWEN3_8B = PublishedModel(
    architecture="Qwen3ForCausalLM",
    layers=36,
    hidden=4096,
    ffn=12288,
    heads=32,
    groups=8,
    tokenizer="Qwen/Qwen3-8B",
)
QWEN3_32B = PublishedModel(
    architecture="Qwen3ForCausalLM",
    layers=64,
    hidden=5120,
    ffn=25600,
    heads=64,
    groups=8,
    tokenizer="Qwen/Qwen3-4B",  # one tokenizer for all sizes
)
QWEN3_30B_A3B = PublishedModel(
    architecture="Qwen3MoeForCausalLM",
    layers=48,
    hidden=2048,
    ffn=6144,
    heads=32,
    groups=4,
    experts=128,
    tokenizer="Qwen/Qwen3-30B-A3B",
)
LLAMA31_8B = PublishedModel(
    architecture="LlamaForCausalLM",
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    groups=8,
    tokenizer="unsloth/Meta-Llama-3.1-8B-Instruct",
)
