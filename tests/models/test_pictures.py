"""Pictures as a model takes them: how many tokens, where they stand, and the pixels, with transformers' own processor."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.pictures import picture

from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor, limit_pixels, processor_of, scaled

FAMILIES: list[Literal["qwen2_5_vl", "qwen3_vl"]] = ["qwen2_5_vl", "qwen3_vl"]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model whose tokens are 20 x 20 pixels, and whose pictures have at most 16 of them."""
    family: Literal["qwen2_5_vl", "qwen3_vl"] = request.param
    shape = Fresh(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        vision=Vision(family=family, depth=2, hidden_size=16, num_heads=2, patch_size=10),
    )
    folder = tmp_path_factory.mktemp("model") / family
    make_model(folder, Model(fresh=shape, max_pixels=16 * 400))
    return folder


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (60, 40, 6),  # as it is: 3 x 2
        (64, 37, 6),  # rounded to 60 x 40
        (160, 160, 16),  # 64 tokens, scaled down to 80 x 80
        (5, 5, 4),  # scaled up to the 4 tokens that a picture has at least
    ],
)
def test_tokens_are_counted_by_the_header_as_many_as_the_pixels_make(
    folder: Path, width: int, height: int, tokens: int
) -> None:
    processor = PictureProcessor.of(folder)
    file = picture(width, height)
    assert processor.count(file[: len(file) - 20]) == tokens  # without the end of the file
    pixels = processor.pixels(file)
    assert int(pixels.grid.prod()) == pixels.pixel_values.shape[0] == 4 * tokens
    assert (pixels.pixel_values.shape[1], pixels.pixel_values.dtype) == (3 * 2 * 10 * 10, torch.float32)


def test_a_size_is_scaled_as_transformers_does_it() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    @given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 20), st.integers(1, 64), st.integers(1, 16))
    def compared(height: int, width: int, half: int, tokens: int, share: int) -> None:
        side, most = 2 * half, tokens * 4 * half * half
        assume(max(height, width) <= 200 * min(height, width))
        ours = scaled(height, width, side, most // share, most)
        assert ours == smart_resize(height, width, side, most // share, most)

    compared()


def test_what_is_no_picture_or_all_length_is_refused(folder: Path) -> None:
    processor = PictureProcessor.of(folder)
    for file in (b"", b"GIF89a", picture(40, 40)[:20]):
        with pytest.raises(UserError, match="it has a picture that is no PNG or JPEG file"):
            processor.count(file)
    with pytest.raises(UserError, match="1,005 x 5 pixels, and none may be more than 200 times as long as wide"):
        processor.count(picture(1005, 5))


def test_white_is_the_brightest_that_each_channel_can_be(folder: Path) -> None:
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    expected = [
        (1 - mean) / std for mean, std in zip(preprocessor["image_mean"], preprocessor["image_std"], strict=True)
    ]
    pixels = PictureProcessor.of(folder).pixels(picture(40, 40)).pixel_values
    assert torch.allclose(pixels.view(16, 3, 200).amax(dim=(0, 2)), torch.tensor(expected))


def test_each_placeholder_becomes_as_many_as_its_own_picture_has(folder: Path) -> None:
    processor = PictureProcessor.of(folder)
    image = processor.tokens.image
    files = [picture(60, 40), picture(40, 40)]
    token_ids = (1, image, 2, image, 3)
    expanded = processor.expanded(token_ids, files)
    assert expanded == (1, *[image] * 6, 2, *[image] * 4, 3)
    assert processor.collapsed(expanded) == token_ids
    with pytest.raises(UserError, match="its prompt has places for 2 pictures, and it has 1: correct"):
        processor.expanded(token_ids, files[:1])


def _changed(folder: Path, copy: Path, name: str, **changes: Any) -> Path:
    copy.mkdir()
    for each in ("config.json", "preprocessor_config.json"):
        content = json.loads((folder / each).read_text())
        content |= changes if each == name else {}
        (copy / each).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return copy


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"vision_config": None, "model_type": "qwen2"}, "is a qwen2 model, which takes text alone"),
        ("config.json", {"model_type": "llava"}, "is a llava model, whose pictures are not known here"),
        ("preprocessor_config.json", {"patch_size": 16}, r"patch_size 16, and vision_config\.patch_size of \S+ is 10"),
    ],
)
def test_a_model_without_pictures_and_a_processor_of_another_one_are_refused(
    folder: Path, tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        PictureProcessor.of(_changed(folder, tmp_path / "other", name, **changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"min_pixels": "many"}, "are not whole numbers"),
        ({"max_pixels": 0}, "the smallest picture has 1600 pixels, and the largest 0"),
        ({"min_pixels": 9999}, "the smallest picture has 9999 pixels, and the largest 6400"),
        ({"size": [1, 2]}, "size is not shortest_edge and longest_edge"),
        ({"do_resize": False}, "do_resize is false, and pictures have to be scaled"),
        ({"image_mean": [0.5]}, "image_mean is not a number for each of red, green and blue"),
        (
            {"temporal_patch_size": 3},
            r"temporal_patch_size 3, and vision_config\.temporal_patch_size of config\.json is 2",
        ),
    ],
)
def test_settings_that_would_fail_with_the_first_picture_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    foreign = _changed(folder, tmp_path / "foreign", "preprocessor_config.json", **changes)
    with pytest.raises(UserError, match=rf"preprocessor_config\.json.*{fault}.*: copy "):
        PictureProcessor.of(foreign)


def test_a_tower_of_nothing_is_none_and_a_missing_preprocessor_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json: copy that of the model it comes from"):
        PictureProcessor.of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "vision_config": null}')
    assert processor_of(tmp_path) is None


@pytest.mark.parametrize(
    ("published", "limited"),
    [
        ({"min_pixels": 3136, "max_pixels": 12845056}, {"min_pixels": 3136, "max_pixels": 400 * 16}),
        (
            {"size": {"longest_edge": 16777216, "shortest_edge": 3136}},
            {"size": {"longest_edge": 400 * 16, "shortest_edge": 3136}},
        ),
        ({}, {"max_pixels": 400 * 16}),
    ],
    ids=["Qwen2.5-VL", "Qwen3-VL", "nothing said"],
)
def test_pixels_are_limited_where_the_published_files_say_it(
    folder: Path, tmp_path: Path, published: dict[str, Any], limited: dict[str, Any]
) -> None:
    none: dict[str, Any] = {"min_pixels": None, "max_pixels": None, "size": None}
    model = _changed(folder, tmp_path / "model", "preprocessor_config.json", **none | published)
    limit_pixels(model, 400 * 16)
    content = json.loads((model / "preprocessor_config.json").read_text())
    assert {key: content[key] for key in none if key in content} == limited
    large = picture(500, 500)
    assert (
        PictureProcessor.of(model).count(large) == 16 == int(PictureProcessor.of(model).pixels(large).grid.prod()) // 4
    )
    with pytest.raises(UserError, match=r"model\.max_pixels is 1, and a picture of this model has \d+ pixels"):
        limit_pixels(model, 1)
