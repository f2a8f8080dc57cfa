"""Filter on tools: the policy must see descriptions or demonstrated calls.

A fresh model is exempt: its template has no room for descriptions, so it learns calls from demonstrations, or by chance.
"""

from collections.abc import Iterable
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.types import Example
from dagrpo.models.config import TEMPLATE_FAMILIES
from dagrpo.utils.files import read_object

TEMPLATE = "template"  # rollout.chat.name: by the model's own chat template; every other format has its own way to tell


def require_tools_told(examples: Iterable[Example], model: Path, chat: str) -> None:
    """UserError names the first task and tool that the model's chat template, which tells of none, leaves untold.

    examples: the problems of one task. chat: rollout.chat.name.
    """
    untold = [example for example in examples if example.tools]
    if chat != TEMPLATE or not untold or any(example.demonstration for example in untold) or _is_fresh(model):
        return
    raise UserError(
        f"{untold[0].task} offers the tool {untold[0].tools[0]}, and the chat template of the model in {model} leaves out what tools "
        f"there are, so that the policy would never know: {_template_of_ours(model)}choose a model whose template tells of tools, or "
        "set rollout.chat to {name: renderers} with the model's family."
    )


def _is_fresh(model: Path) -> bool:
    origin = model / "origin.json"
    return origin.is_file() and read_object(origin).get("source") == "fresh"


def _template_of_ours(model: Path) -> str:
    family = read_object(model / "config.json").get("model_type")
    fitting = next((name for name, other in TEMPLATE_FAMILIES.items() if other == family), None)
    return "" if fitting is None else f"set model.chat_template to {fitting}, "
