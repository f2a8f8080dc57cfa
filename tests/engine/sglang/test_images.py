"""Pictures on their way to a server, which a script stands in for, and what its answers are taken for."""

import io
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.engine.conftest import MakePool, Serve
from tests.engine.scripted import Echo, reply, scores

from dagrpo.core.types import Completion, PictureTokens, PromptPictures, SamplingRequest, ScoringRequest
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.sglang.images import sent_pictures
from dagrpo.engine.sglang.server import require_servable
from dagrpo.utils.files import write_json

START, IMAGE, END, VIDEO = 90, 91, 92, 93
TOKENS = PictureTokens(image=IMAGE, video=VIDEO, start=START, end=END)
CAT, DOG = b"a cat", b"a dog"
SENT = {file: f"data:;base64,{b64encode(file).decode()}" for file in (CAT, DOG)}
EXPANDED = (1, START, IMAGE, IMAGE, IMAGE, END, 2)
COLLAPSED = [1, START, IMAGE, END, 2]
Body = dict[str, Any]
Ask = Callable[..., tuple[list[Completion], list[Body]]]


def request(token_ids: tuple[int, ...] = EXPANDED, files: tuple[bytes, ...] = (CAT,), seed: int = 0) -> SamplingRequest:
    return SamplingRequest(
        input_ids=token_ids, seed=seed, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4,
        pictures=PromptPictures(files=files, tokens=TOKENS),
    )  # fmt: skip


def wrote(*token_ids: int, prompt: tuple[int, ...] = EXPANDED) -> Echo:
    """A server that makes three tokens of a picture, and writes these."""
    about = {"output_token_logprobs": [[-0.5, token, None] for token in token_ids]}
    answer = {
        "output_ids": list(token_ids),
        "prompt_token_ids": list(prompt),
        "meta_info": reply(1, reason={"type": "stop", "matched": 1})["meta_info"] | about,
    }
    return Echo(lambda body: (200, [answer for _ in body["input_ids"]]))


def test_prompts_with_and_without_pictures_go_in_one_batch_each_with_its_own(ask: Ask) -> None:
    def answer(body: Body) -> tuple[int, Any]:
        grown = [
            [token for one in ids for token in ([one] * 3 if one == IMAGE else [one])] for ids in body["input_ids"]
        ]
        return 200, [reply(7) | {"prompt_token_ids": ids} for ids in grown]

    two = (START, IMAGE, IMAGE, IMAGE, END, START, IMAGE, IMAGE, IMAGE, END)
    _, (body,) = ask(Echo(answer), request((4, 5), ()), request(two, (DOG, CAT)), request())
    assert body["input_ids"] == [[4, 5], [START, IMAGE, END, START, IMAGE, END], COLLAPSED]
    assert body["image_data"] == [[], [SENT[DOG], SENT[CAT]], [SENT[CAT]]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_sglang_reads_a_picture_as_training_does_and_not_by_a_decoder_of_a_gpu(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = pytest.importorskip("sglang.srt.utils.common", reason="the engine is not installed")
    content = io.BytesIO()
    Image.radial_gradient("L").resize((40, 30)).convert("RGB").save(content, kind)
    ((sent,),) = sent_pictures([[content.getvalue()]])["image_data"]
    read, _ = common.load_image(sent)
    with Image.open(content) as ours:
        assert read.tobytes() == ours.tobytes()
    monkeypatch.setattr(common, "is_cuda", lambda: True)
    assert common.is_jpeg_with_cuda(content.getvalue()) == (kind == "JPEG")
    assert not common.is_jpeg_with_cuda(common.get_image_bytes(sent))


@pytest.fixture
def ask(serve: Serve, pool_of: MakePool) -> Ask:
    """Ask a scripted server for completions; return them, and what it was asked."""

    def generate(script: Echo, *requests: SamplingRequest) -> tuple[list[Completion], list[Body]]:
        server = serve(script)
        completions = pool_of(Endpoint(address=server.address)).generate(requests, lockstep=True)
        return completions, [body for path, body in server.asked if path == "/generate"]

    return generate


def test_a_picture_is_sent_as_one_placeholder_and_its_file_and_a_text_without(ask: Ask) -> None:
    (completion,), (body,) = ask(wrote(7), request())
    assert (body["input_ids"], body["image_data"]) == ([COLLAPSED], [[SENT[CAT]]])
    assert body["return_prompt_token_ids"] is True
    assert body["sampling_params"][0]["stop_token_ids"] == [IMAGE, VIDEO, START]
    assert (completion.token_ids, completion.finish_reason) == ((7,), "stop")
    _, (of_text,) = ask(wrote(7), request((4, 5), ()))
    assert {"image_data", "return_prompt_token_ids"}.isdisjoint(of_text)


def test_prompts_that_differ_in_their_pictures_alone_are_not_taken_for_one(ask: Ask) -> None:
    _, (shared, whole) = ask(wrote(7), request(seed=0), request(seed=1), request(files=(DOG,)))
    assert (shared["input_ids"], shared["image_data"]) == ([COLLAPSED], [[SENT[CAT]]])
    assert len(whole["image_data"]) == 3


@pytest.mark.parametrize(
    ("written", "kept"), [*(((7, 8, token, 9), (7, 8)) for token in (IMAGE, VIDEO, START)), ((IMAGE,), ())]
)
def test_a_completion_ends_before_the_first_token_that_would_begin_a_picture(
    ask: Ask, written: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    (completion,), _ = ask(wrote(*written), request())
    assert (completion.token_ids, completion.logprobs) == (kept, (-0.5,) * len(kept))
    assert completion.finish_reason == "stop", "it has room left"


@pytest.mark.parametrize(
    "prompt", [(*EXPANDED[:2], IMAGE, *EXPANDED[2:]), (*EXPANDED[:-1], 3), (START, *[IMAGE] * 200_000)]
)
def test_a_server_that_makes_another_prompt_of_the_pictures_is_refused(ask: Ask, prompt: tuple[int, ...]) -> None:
    with pytest.raises(ServerError, match=r"tokens of pictures that take \[3\] by .*--image-processor-backend=pil"):
        ask(wrote(7, prompt=prompt), request())


@pytest.mark.parametrize(
    ("token_ids", "files"),
    [
        (EXPANDED, ()),
        (EXPANDED, (CAT, DOG)),
        ((1, 2), (CAT,)),
        ((*EXPANDED, VIDEO), (CAT,)),
        ((*EXPANDED, IMAGE), (CAT,)),
    ],
)
def test_a_prompt_that_a_server_would_never_answer_is_not_sent(
    ask: Ask, token_ids: tuple[int, ...], files: tuple[bytes, ...]
) -> None:
    with pytest.raises(AssertionError, match=r"placeholders|videos"):
        ask(wrote(7), request(token_ids, files))


def test_a_model_that_takes_pictures_needs_its_preprocessor_and_patches_that_sglang_sees(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    write_json(tmp_path / "config.json", {"vision_config": {}})
    with pytest.raises(
        ServerError, match=r"has no preprocessor_config\.json, which says how its pictures are prepared"
    ):
        require_servable(tmp_path)
    write_json(tmp_path / "preprocessor_config.json", {})
    require_servable(tmp_path)
    for family, patch_size in (("qwen2_5_vl", 14), ("qwen3_vl", 8)):
        write_json(tmp_path / "config.json", {"model_type": family, "vision_config": {"patch_size": patch_size}})
        require_servable(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 8}})
    with pytest.raises(ServerError, match="SGLang sees a qwen2_5_vl with patches of 14 alone: set model"):
        require_servable(tmp_path)


def test_scores_are_of_the_expanded_places(serve: Serve, pool_of: MakePool) -> None:
    def answer(body: Body) -> tuple[int, Any]:
        if "logprob_start_len" not in body:
            return 200, []
        grown = body | {"input_ids": [[*EXPANDED, 7]]}
        return 200, [each | {"prompt_token_ids": [*EXPANDED, 7]} for each in scores(grown)]

    server = serve(Echo(answer))
    asked = ScoringRequest(token_ids=(*EXPANDED, 7), first=7, pictures=request().pictures)
    assert pool_of(Endpoint(address=server.address)).score([asked], lockstep=True) == [pytest.approx((-0.7,))]
    body = server.asked[-1][1]
    assert (body["input_ids"], body["image_data"]) == ([[*COLLAPSED, 7]], [[SENT[CAT]]])
    assert body["logprob_start_len"] == [6]
