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
# the system turn, calls after an answer's text, results in a user's turn.
_FOLDER = Path(__file__).parent
_PICTURES = "\n" + (_FOLDER / "chatml_pictures.j2").read_text(encoding="utf-8")
_TURNS = (_FOLDER / "chatml_tools.j2").read_text(encoding="utf-8")
_TEXT = r"""
{%- macro said(content) -%}
    {{- content or '' -}}
{%- endmacro -%}
"""


def _chatml(said: str, default: str) -> str:
    """Return a template of ChatML with tools. said: macro that renders a message's content; default: the system's text without one."""
    return said + _TURNS.replace("DEFAULT", default)


QWEN2_5_VL_TOOLS = _chatml(_PICTURES, "You are a helpful assistant.")
SMOLLM2_TOOLS = _chatml(_TEXT, "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
TEMPLATES = {"qwen2_5_vl_tools": QWEN2_5_VL_TOOLS, "smollm2_tools": SMOLLM2_TOOLS}
