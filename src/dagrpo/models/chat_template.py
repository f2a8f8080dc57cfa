"""Chat templates of ours, for families whose own omit tools.

The template is stored in the model folder: every stage reads it there, and `export` passes it on. Rendering is in
dagrpo.chat.rendering.
"""

from pathlib import Path

from dagrpo.checkpoints.folder import CONFIG
from dagrpo.core.errors import UserError
from dagrpo.models.config import TEMPLATE_FAMILIES
from dagrpo.utils.files import read_object, write_json, write_text

_CONFIG = "tokenizer_config.json"
MARK = "<|im_start|>"  # of a turn in ChatML


def fitting_templates(folder: Path) -> list[str]:
    """Return the names of our templates that fit a model: its family, and the tokens of ChatML."""
    family = read_object(folder / CONFIG).get("model_type")
    return [name for name, other in TEMPLATE_FAMILIES.items() if other == family and _knows_chatml(folder)]


def _knows_chatml(folder: Path) -> bool:
    path = folder / "tokenizer.json"
    added = read_object(path).get("added_tokens", []) if path.is_file() else [{"content": MARK}]
    return any(each["content"] == MARK for each in added)


def replace_chat_template(folder: Path, name: str) -> None:
    """Write the template `name` into a model's folder, as its only one. Raises UserError for a model that it does not fit."""
    if name not in fitting_templates(folder):
        family, expected = read_object(folder / CONFIG).get("model_type"), TEMPLATE_FAMILIES[name]
        reason = f"is for a {expected}, and the model is a {family}"
        if family == expected:
            reason = f"writes the token {MARK}, which the model's tokenizer lacks"
        raise UserError(
            f"model.chat_template is {name}, which {reason}: set model.chat_template to own, or choose another model."
        )
    write_text(folder / "chat_template.jinja", TEMPLATES[name])
    (folder / "chat_template.json").unlink(missing_ok=True)
    if (folder / _CONFIG).is_file():
        config = read_object(folder / _CONFIG)
        if config.pop("chat_template", None) is not None:
            write_json(folder / _CONFIG, config)


# Both write conversations as the model's own template does, to the character, and tools as Qwen2.5 does: the functions at the end of
# the system turn, calls after an answer's text, results in a user's turn. In Python, not in files of Jinja, because they change what a
# policy learns, and a stage's code is its modules.
_PICTURES = r"""
{%- set pictures = namespace(count=0) -%}
{%- set videos = namespace(count=0) -%}
{%- macro said(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content or [] -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
                {%- set pictures.count = pictures.count + 1 -%}
                {{- 'Picture ' ~ pictures.count ~ ': ' if add_vision_id else '' -}}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part['type'] == 'video' or 'video' in part -%}
                {%- set videos.count = videos.count + 1 -%}
                {{- 'Video ' ~ videos.count ~ ': ' if add_vision_id else '' -}}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- elif 'text' in part -%}
                {{- part['text'] -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
"""
_TEXT = r"""
{%- macro said(content) -%}
    {{- content or '' -}}
{%- endmacro -%}
"""
_OFFERED = r"""
{%- macro offered() -%}
    {{- '\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' -}}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' -}}
    {%- for tool in tools -%}
        {{- '\n' ~ (tool | tojson) -}}
    {%- endfor -%}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' -}}
    {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n' -}}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' -}}
{%- endmacro -%}
"""
_TURNS = r"""
{%- if messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\nDEFAULT' ~ (offered() if tools else '') ~ '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}
        {{- '<|im_start|>user' if loop.first or loop.previtem['role'] != 'tool' else '' -}}
        {{- '\n<tool_response>\n' ~ said(message['content']) ~ '\n</tool_response>' -}}
        {{- '<|im_end|>\n' if loop.last or loop.nextitem['role'] != 'tool' else '' -}}
    {%- else -%}
        {{- '<|im_start|>' ~ message['role'] ~ '\n' ~ said(message['content']) -}}
        {{- offered() if tools and loop.first and message['role'] == 'system' else '' -}}
        {%- for call in message['tool_calls'] or [] -%}
            {%- set function = call['function'] or call -%}
            {{- '\n' if message['content'] or not loop.first else '' -}}
            {{- '<tool_call>\n{"name": "' ~ function['name'] ~ '", "arguments": ' -}}
            {{- function['arguments'] if function['arguments'] is string else function['arguments'] | tojson -}}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}
"""


def _chatml(said: str, default: str) -> str:
    """Return a template of ChatML with tools. said: macro that renders a message's content; default: the system's text without one."""
    return said + _OFFERED.removeprefix("\n") + _TURNS.removeprefix("\n").replace("DEFAULT", default)


QWEN2_5_VL_TOOLS = _chatml(_PICTURES, "You are a helpful assistant.")
SMOLLM2_TOOLS = _chatml(_TEXT, "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
TEMPLATES = {"qwen2_5_vl_tools": QWEN2_5_VL_TOOLS, "smollm2_tools": SMOLLM2_TOOLS}
