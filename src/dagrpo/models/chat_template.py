"""Chat templates of ours, for families whose own omit tools.

The template is stored in the model folder: every stage reads it there, and `export` passes it on. Rendering is in
dagrpo.chat.templates.
"""

from pathlib import Path

from dagrpo.checkpoints.folder import CONFIG
from dagrpo.core.errors import UserError
from dagrpo.models import qwen2_5_vl_tools
from dagrpo.models.config import TEMPLATE_FAMILIES
from dagrpo.utils.files import read_object, write_json, write_text

_TEMPLATES = {"qwen2_5_vl_tools": qwen2_5_vl_tools.TEMPLATE}
_CONFIG = "tokenizer_config.json"


def replace_chat_template(folder: Path, name: str) -> None:
    """Write the template `name` into a model's folder, as its only one. UserError: the model is of another family."""
    family = read_object(folder / CONFIG).get("model_type")
    wanted = TEMPLATE_FAMILIES[name]
    if family != wanted:
        raise UserError(
            f"model.chat_template is {name}, which is for a {wanted}, and the model is a {family}: set model.chat_template to own, or "
            "choose another model."
        )
    write_text(folder / "chat_template.jinja", _TEMPLATES[name])
    (folder / "chat_template.json").unlink(missing_ok=True)
    if (folder / _CONFIG).is_file():
        config = read_object(folder / _CONFIG)
        if config.pop("chat_template", None) is not None:
            write_json(folder / _CONFIG, config)
