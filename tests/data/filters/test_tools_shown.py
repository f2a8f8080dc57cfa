"""A task whose tools the model's chat template leaves out is refused, unless something else tells the policy of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.filters.problems import character_model, task_row
from tests.data.preparing import gsm8k_mirror, limited

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.data.card import Card
from dagrpo.data.filters.prompt_length import require_tools_shown
from dagrpo.data.prepare import prepare
from dagrpo.models.chat_template import MARK, QWEN2_5_VL_TOOLS
from dagrpo.utils.files import write_json

UNTOLD = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Its template writes what is said, and no tools."""
    character_model(tmp_path / "model")
    return with_template(tmp_path / "model", UNTOLD)


def with_template(model: Path, template: str) -> Path:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(model)
    return model


def prepared(model: Path, folder: Path, *, evaluate: str = "gsm8k_tool", chat: str = "template") -> Card:
    mirror = gsm8k_mirror(folder / "mirror", ["How many?"])
    return prepare(
        "gsm8k_tool", folder / "out", limited(mirror), model=model, evaluate=[evaluate], train=evaluate, chat=chat
    )


def test_a_task_whose_tools_the_template_leaves_out_is_refused_with_what_to_do(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"^gsm8k_tool offers the tool answer_check, .* would never learn of it: choose a model .* renderers",
    ):
        prepared(model, tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_remedy_names_our_template_for_the_family_that_has_one(model: Path) -> None:
    write_json(model / "config.json", {"model_type": "qwen2_5_vl"})
    tokenizer = load_tokenizer(model)
    tokenizer.add_tokens([MARK], special_tokens=True)
    tokenizer.save_pretrained(model)
    with pytest.raises(
        UserError, match=r"would never learn of it: set model\.chat_template to qwen2_5_vl_tools, choose"
    ):
        require_tools_shown([task_row("How many?", tools=("answer_check",))], model, "template")


def test_a_template_that_tells_of_tools_is_taken(model: Path, tmp_path: Path) -> None:
    with_template(model, QWEN2_5_VL_TOOLS)
    assert prepared(model, tmp_path).prompt_tokens.tools_shown


@pytest.mark.parametrize("changes", [{"chat": "renderers"}, {"evaluate": "gsm8k"}])
def test_what_is_not_rendered_by_the_template_or_not_attempted_is_prepared(
    model: Path, tmp_path: Path, changes: dict[str, str]
) -> None:
    assert prepared(model, tmp_path, **changes).prompt_tokens.tools_shown is False


def test_demonstrations_of_calls_tell_of_a_tool_and_so_does_nothing_to_a_fresh_model(model: Path) -> None:
    untold = task_row("How many?", tools=("answer_check",))
    called = ({"role": "assistant", "content": "<tool_call>"},)
    require_tools_shown([untold, replace(untold, demonstration=called)], model, "template")
    require_tools_shown([task_row("How many?")], model, "template")
    write_json(model / "origin.json", {"source": "fresh"})
    require_tools_shown([untold], model, "template")
