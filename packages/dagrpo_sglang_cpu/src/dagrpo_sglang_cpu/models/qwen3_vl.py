"""SGLang's own Qwen3-VL, under the name by which SGLang looks for it."""

from sglang.srt.models.qwen3_vl import EntryClass

__all__ = ["EntryClass"]
