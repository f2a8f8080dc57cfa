"""Pictures on their way to a server, which a script stands in for, and what its answers are taken for."""

import io
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.engine.conftest import MakePool, Serve
from tests.engine.scripted import Echo, reply, scores

from dagrpo.core.types import PictureTokens, PromptPictures, SamplingRequest, ScoringRequest
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


def test_a_picture_is_sent_as_one_placeholder_and_its_file(serve: Serve, pool_of: MakePool) -> None:
    server = serve(wrote(7))
    (completion,) = pool_of(Endpoint(address=server.address)).generate([request()], lockstep=True)
    body = server.asked[-1][1]
    assert body["input_ids"] == [COLLAPSED]
    assert body["image_data"] == [[SENT[CAT]]]
    assert body["return_prompt_token_ids"] is True
    assert body["sampling_params"][0]["stop_token_ids"] == [IMAGE, VIDEO, START]
    assert (completion.token_ids, completion.finish_reason) == ((7,), "stop")


def test_prompts_with_and_without_pictures_go_in_one_batch_each_with_its_own(serve: Serve, pool_of: MakePool) -> None:
    def answer(body: Body) -> tuple[int, Any]:
        grown = [
            [token for one in ids for token in ([one] * 3 if one == IMAGE else [one])] for ids in body["input_ids"]
        ]
        return 200, [reply(7) | {"prompt_token_ids": ids} for ids in grown]

    server = serve(Echo(answer))
    two = (START, IMAGE, IMAGE, IMAGE, END, START, IMAGE, IMAGE, IMAGE, END)
    pool_of(Endpoint(address=server.address)).generate(
        [request((4, 5), ()), request(two, (DOG, CAT)), request()], lockstep=True
    )
    body = server.asked[-1][1]
    assert body["input_ids"] == [[4, 5], [START, IMAGE, END, START, IMAGE, END], COLLAPSED]
    assert body["image_data"] == [[], [SENT[DOG], SENT[CAT]], [SENT[CAT]]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_sglang_reads_a_picture_as_training_does(kind: str) -> None:
    common = pytest.importorskip("sglang.srt.utils.common", reason="the engine is not installed")
    content = io.BytesIO()
    Image.radial_gradient("L").resize((40, 30)).convert("RGB").save(content, kind)
    ((sent,),) = sent_pictures([[content.getvalue()]])["image_data"]
    read, _ = common.load_image(sent)
    with Image.open(content) as ours:
        assert read.tobytes() == ours.tobytes()


def test_a_jpeg_is_sent_such_that_sglang_takes_no_decoder_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    common = pytest.importorskip("sglang.srt.utils.common", reason="the engine is not installed")
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "JPEG")
    ((sent,),) = sent_pictures([[content.getvalue()]])["image_data"]
    monkeypatch.setattr(common, "is_cuda", lambda: True)
    assert common.is_jpeg_with_cuda(content.getvalue())
    assert not common.is_jpeg_with_cuda(common.get_image_bytes(sent))


def test_a_batch_of_text_says_nothing_of_pictures(serve: Serve, pool_of: MakePool) -> None:
    server = serve(wrote(7))
    pool_of(Endpoint(address=server.address)).generate([request((4, 5), ())], lockstep=True)
    assert {"image_data", "return_prompt_token_ids"}.isdisjoint(server.asked[-1][1])


def test_prompts_that_differ_in_their_pictures_alone_are_not_taken_for_one(serve: Serve, pool_of: MakePool) -> None:
    server = serve(wrote(7))
    batch = [request(seed=0), request(seed=1), request(files=(DOG,))]
    pool_of(Endpoint(address=server.address)).generate(batch, lockstep=True)
    shared = server.asked[1][1]
    assert (shared["input_ids"], shared["image_data"]) == ([COLLAPSED], [[SENT[CAT]]])
    assert len(server.asked[2][1]["image_data"]) == 3


@pytest.mark.parametrize("token", [IMAGE, VIDEO, START])
def test_a_completion_ends_before_the_first_token_that_would_begin_a_picture(
    serve: Serve, pool_of: MakePool, token: int
) -> None:
    pool = pool_of(Endpoint(address=serve(wrote(7, 8, token, 9)).address))
    (completion,) = pool.generate([request()], lockstep=True)
    assert completion.token_ids == (7, 8)
    assert completion.logprobs == (-0.5, -0.5)
    assert completion.finish_reason == "stop", "it has room left"


def test_a_completion_that_begins_with_a_placeholder_is_empty(serve: Serve, pool_of: MakePool) -> None:
    pool = pool_of(Endpoint(address=serve(wrote(IMAGE)).address))
    (completion,) = pool.generate([request((4, 5), ())], lockstep=True)
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ((), (), "stop")


@pytest.mark.parametrize("prompt", [(*EXPANDED[:2], IMAGE, *EXPANDED[2:]), (*EXPANDED[:-1], 3)])
def test_a_server_that_makes_another_prompt_of_the_pictures_is_refused(
    serve: Serve, pool_of: MakePool, prompt: tuple[int, ...]
) -> None:
    pool = pool_of(Endpoint(address=serve(wrote(7, prompt=prompt)).address))
    with pytest.raises(ServerError, match=r"tokens of pictures that take \[3\] by .*--image-processor-backend=pil"):
        pool.generate([request()], lockstep=True)


@pytest.mark.parametrize("told", [None, {}, [1, "two"]])
def test_a_server_that_does_not_tell_its_prompt_is_refused(serve: Serve, pool_of: MakePool, told: object) -> None:
    server = serve(Echo(lambda body: (200, [reply(7) | {"prompt_token_ids": told}])))
    with pytest.raises(ServerError, match=r"did not answer /generate as SGLang does|tokens of pictures that take"):
        pool_of(Endpoint(address=server.address)).generate([request()], lockstep=True)


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
    serve: Serve, pool_of: MakePool, token_ids: tuple[int, ...], files: tuple[bytes, ...]
) -> None:
    server = serve()
    with pytest.raises(AssertionError):
        pool_of(Endpoint(address=server.address)).generate([request(token_ids, files)], lockstep=False)
    assert not server.asked


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


def test_an_answer_may_be_as_large_as_the_prompts_that_it_tells(serve: Serve, pool_of: MakePool) -> None:
    long = (START, *[IMAGE] * 200_000, END)
    server = serve(wrote(7, prompt=long))
    (completion,) = pool_of(Endpoint(address=server.address)).generate(
        [replace(request(), input_ids=long)], lockstep=True
    )
    assert completion.token_ids == (7,)


def test_a_model_that_takes_pictures_is_not_served_without_its_preprocessor(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    write_json(tmp_path / "config.json", {"vision_config": {}})
    with pytest.raises(
        ServerError, match=r"has no preprocessor_config\.json, which says how its pictures are prepared"
    ):
        require_servable(tmp_path)
    write_json(tmp_path / "preprocessor_config.json", {})
    require_servable(tmp_path)


def test_patches_that_sglang_does_not_see_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).touch()
    for family, patch_size in (("qwen2_5_vl", 14), ("qwen3_vl", 8)):
        write_json(tmp_path / "config.json", {"model_type": family, "vision_config": {"patch_size": patch_size}})
        require_servable(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 8}})
    with pytest.raises(ServerError, match="SGLang sees a qwen2_5_vl with patches of 14 alone: set model"):
        require_servable(tmp_path)
