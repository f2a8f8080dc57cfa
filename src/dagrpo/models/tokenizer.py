"""The tokenizer of a fresh model: one token per byte of UTF-8, so one per character of ASCII, and four special tokens.

With tools it knows the turns of a tool and of a system, too. What each call of a function begins with is one token there,
and what it ends with another: the text is Hermes', and costs two tokens beside those of the argument.

It is Qwen2's tokenizer without any merge. transformers loads the tokenizer of every Qwen2 model as that class, whatever
tokenizer.json says, so a tokenizer of another kind would come back broken.
"""

import json
from collections.abc import Sequence

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, USER, ASSISTANT, END)

# A turn is `<|role|>content<|end|>`; the policy learns to close its own turn with <|end|>.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['user', 'assistant'] %}"
    "{{- raise_exception('this tokenizer knows the roles user and assistant, not ' + message['role']) }}"
    "{%- endif %}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)

SYSTEM, TOOL = "<|system|>", "<|tool|>"
# The same, and calls as Hermes writes them, after the content.
CHAT_TEMPLATE_WITH_TOOLS = (
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{- raise_exception('this tokenizer knows the roles system, user, assistant and tool, not ' + message['role']) }}"
    "{%- endif %}"
    "{{- '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{%- set function = call['function'] %}"
    "{{- '\\n' if message['content'] or not loop.first else '' }}"
    "{{- '<tool_call>\\n{\"name\": ' + (function['name'] | tojson) + ', \"arguments\": ' }}"
    "{{- function['arguments'] if function['arguments'] is string else function['arguments'] | tojson }}"
    "{{- '}\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
CLOSING = '"}}\n</tool_call>'  # of a call whose last argument is a text


def opening(function: str, argument: str) -> str:
    """What a call of the function begins with, up to the first character of its argument."""
    return f'<tool_call>\n{{"name": {json.dumps(function)}, "arguments": {{{json.dumps(argument)}: "'


def character_tokenizer(longest: int, calls: Sequence[tuple[str, str]] = ()) -> Qwen2Tokenizer:
    """The tokenizer, with `longest` as the most tokens that its model takes.

    calls: function and argument of the calls that it spells with two tokens and the argument's own.
    """
    if not calls:
        return _tokenizer(longest, CHAT_TEMPLATE, [USER, ASSISTANT])
    tokenizer = _tokenizer(longest, CHAT_TEMPLATE_WITH_TOOLS, [USER, ASSISTANT, SYSTEM, TOOL])
    # Not special: what is decoded without special tokens would be without its calls.
    pieces = dict.fromkeys([*(opening(function, argument) for function, argument in calls), CLOSING])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    return tokenizer


def _tokenizer(longest: int, chat_template: str, marks: list[str]) -> Qwen2Tokenizer:
    tokens = (*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()))
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=PAD,  # never needed, every byte is known; without one, Qwen2Tokenizer adds its own
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=marks,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,  # it would delete the space in "1 , 2"
        model_max_length=longest,
    )
