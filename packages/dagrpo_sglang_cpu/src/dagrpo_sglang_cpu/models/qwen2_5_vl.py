"""SGLang's own Qwen2.5-VL, under the name by which SGLang looks for it."""

from sglang.srt.models.qwen2_5_vl import EntryClass

__all__ = ["EntryClass"]
