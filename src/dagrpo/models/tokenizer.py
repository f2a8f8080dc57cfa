"""The tokenizer of fresh models: one token per byte, and special tokens.

With tools it also has turns of a tool and of a system. The beginning and the end of each function's call are one token each:
the text is Hermes', and costs two tokens beside those of the argument.

It is Qwen2's tokenizer without any merge. transformers loads the tokenizer of every Qwen2 model as that class, whatever
tokenizer.json says, so a tokenizer of another kind would come back broken.

With pictures it has the four tokens of Qwen's vision-language models besides, and a content may be a list of parts.
"""

import json
from collections.abc import Sequence

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, USER, ASSISTANT, END)
# As Qwen names them: SGLang and transformers look for these names in the tokenizer of a model with pictures.
PICTURE, VIDEO, PICTURE_START, PICTURE_END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"

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
# Goes before either template: a content's text, and one placeholder for each of its pictures.
PARTS = (
    "{%- macro said(content) %}"
    "{%- if content is string %}{{- content }}{%- else %}"
    "{%- for part in content or [] %}"
    f"{{{{- '{PICTURE_START}{PICTURE}{PICTURE_END}' if part['type'] == 'image' else part['text'] }}}}"
    "{%- endfor %}{%- endif %}"
    "{%- endmacro %}"
)
CLOSING = '"}}\n</tool_call>'  # of a call whose last argument is a text


def opening(function: str, argument: str) -> str:
    """Return the opening of a call of the function, up to the first character of its argument."""
    return f'<tool_call>\n{{"name": {json.dumps(function)}, "arguments": {{{json.dumps(argument)}: "'


def character_tokenizer(
    longest: int, calls: Sequence[tuple[str, str]] = (), *, pictures: bool = False
) -> Qwen2Tokenizer:
    """Return the tokenizer, with `longest` as the most tokens that its model takes.

    calls: function and argument of the calls that it spells with two tokens and the argument's own.
    """
    template = CHAT_TEMPLATE_WITH_TOOLS if calls else CHAT_TEMPLATE
    marks = [USER, ASSISTANT, SYSTEM, TOOL] if calls else [USER, ASSISTANT]
    if pictures:
        template, marks = _with_pictures(template), [*marks, PICTURE, VIDEO, PICTURE_START, PICTURE_END]
    tokenizer = _tokenizer(longest, template, marks)
    if not calls:
        return tokenizer
    # Not special: what is decoded without special tokens would be without its calls.
    pieces = dict.fromkeys([*(opening(function, argument) for function, argument in calls), CLOSING])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    return tokenizer


def tells_of_no_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if the chat template is one of ours, which do not describe tools."""
    ours = (CHAT_TEMPLATE, CHAT_TEMPLATE_WITH_TOOLS)
    return tokenizer.chat_template in (*ours, *map(_with_pictures, ours))


def _with_pictures(template: str) -> str:
    """Return the template for contents that may be a list of parts."""
    plain = ("(message['content'] or '')", "message['content'] + '<|end|>'")
    assert sum(content in template for content in plain) == 1, "one place where a turn's content is written"
    for content in plain:
        template = template.replace(content, content.replace("message['content']", "said(message['content'])"))
    return PARTS + template


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
