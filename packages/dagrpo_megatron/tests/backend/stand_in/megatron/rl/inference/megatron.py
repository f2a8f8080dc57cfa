"""Client of the text server, which answers each prompt with the text of ANSWER within its limit, and the sockets of engines."""

import socket
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


class DynamicInferenceEngine:
    def start_listening_to_data_parallel_coordinator(
        self, inference_coordinator_port: int, launch_inference_coordinator: bool, *, hostname: str | None = None
    ) -> socket.socket:
        """Listen as the real one does, which binds the host's name by itself."""
        listening = socket.socket()
        listening.bind((hostname or socket.gethostname(), inference_coordinator_port))
        listening.listen()
        return listening
