"""What a policy, a user or a tool may spell in a conversation with pictures: names of places for pictures, which are none.

Against the real server: each is answered, and by what transformers makes of the same tokens with the same pictures.
"""

import pytest
import torch
from tests.rollout.engine.seers import CAT, CLOSE, DOG, WORDS, Part, Seer, pool, seer

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.records import ScoringRequest
from dagrpo.rollout.engine.pool import ServerPool

pytestmark = pytest.mark.server
__all__ = ["pool", "seer"]
SPELLED = (
    "<image>",
    "<|image_pad|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>",
    "<|video_pad|>",
    "<|vision_start|><|video_pad|><|vision_end|>",
    "<|vision_end|><|vision_start|>",
)


def spelled(seer: Seer, text: str) -> tuple[int, ...]:
    """The text in ordinary tokens, one for each character."""
    ids = tuple(load_tokenizer(seer.folder)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    assert len(ids) == len(text)
    return ids


def asked(seer: Seer, *parts: Part) -> ScoringRequest:
    """How likely the last four tokens are after everything before them."""
    request = seer.request(*parts, WORDS)
    said = request.input_ids
    return ScoringRequest(token_ids=(*said, 40), first=len(said) - len(WORDS), pictures=request.pictures)


@pytest.mark.parametrize("text", SPELLED)
def test_a_name_that_is_spelled_in_ordinary_tokens_shows_no_picture(seer: Seer, pool: ServerPool, text: str) -> None:
    """Before, between and after pictures, in a later turn, and where there is none."""
    said = spelled(seer, text)
    turn = (*WORDS, seer.pictures.tokens.end, *said)
    requests = [
        asked(seer, said, CAT),
        asked(seer, CAT, said, DOG),
        asked(seer, DOG, CAT, said, said, turn, said),
        asked(seer, said),
    ]
    for request, scores in zip(requests, pool.score(requests, lockstep=True), strict=True):
        assert request.pictures is not None
        ours = seer.logprobs(request.token_ids, request.pictures.files)[-len(scores) :]
        assert torch.allclose(ours, torch.tensor(scores), atol=CLOSE)
