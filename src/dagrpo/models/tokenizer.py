"""The tokenizer of a fresh model: one token per byte of UTF-8, so one per character of ASCII, and four special tokens.

It is Qwen2's tokenizer without any merge. transformers loads the tokenizer of every Qwen2 model as that class, whatever
tokenizer.json says, so a tokenizer of another kind would come back broken.
"""

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


def character_tokenizer(longest: int) -> Qwen2Tokenizer:
    """The tokenizer, with `longest` as the most tokens that its model takes."""
    tokens = (*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()))
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=PAD,  # never needed, every byte is known; without one, Qwen2Tokenizer adds its own
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,  # it would delete the space in "1 , 2"
        model_max_length=longest,
    )
