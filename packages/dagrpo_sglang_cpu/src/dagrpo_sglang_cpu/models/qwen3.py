"""SGLang's own Qwen3, under the name by which SGLang looks for it."""

from sglang.srt.models.qwen3 import EntryClass

__all__ = ["EntryClass"]
