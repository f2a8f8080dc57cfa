"""Client of the text server: it answers each prompt with the text of ANSWER, within the limit that it is given."""

from types import SimpleNamespace
from typing import Any

ANSWER = "#### 7"


class AsyncOpenAI:
    def __init__(self, tokenizer: Any) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self._tokenizer = tokenizer

    async def _create(self, messages: list[dict[str, str]], max_completion_tokens: int | None = None) -> Any:
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        answer = [*self._tokenizer.encode(ANSWER, add_special_tokens=False), self._tokenizer.eos_token_id]
        cut = answer[:max_completion_tokens]
        return SimpleNamespace(
            token_ids=[*prompt, *cut], prompt_length=len(prompt), finish_reason="stop" if cut == answer else "length"
        )
