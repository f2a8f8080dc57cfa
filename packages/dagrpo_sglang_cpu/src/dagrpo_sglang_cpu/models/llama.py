"""SGLang's own Llama, under the name by which SGLang looks for it."""

from sglang.srt.models.llama import EntryClass

__all__ = ["EntryClass"]
