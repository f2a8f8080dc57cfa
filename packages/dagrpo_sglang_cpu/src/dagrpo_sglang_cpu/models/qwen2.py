"""SGLang's own Qwen2, under the name by which SGLang looks for it."""

from sglang.srt.models.qwen2 import EntryClass

__all__ = ["EntryClass"]
