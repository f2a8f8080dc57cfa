"""How far SGLang's logprobs are from transformers' where prompts show pictures, for both families of models.

    OMP_NUM_THREADS=1 python -m benchmarks.picture_logprobs

Fresh models whose every weight was moved, in float32. Each of 16 pictures of different sizes is asked about four times, with
16 tokens each; then come prompts with several pictures or none, a second turn, and all of it again after both towers were given
other weights. Of each: the largest and the mean difference of a sampled token's logprob, in nats.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file
from tests.engine import seers
from tests.engine.pools import pool_over
from tests.engine.seers import Seer

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer

FAMILIES = ("qwen2_5_vl", "qwen3_vl")


def main() -> None:
    """Print a row for each family and kind of prompt."""
    print(f"{'family':12}{'prompts':34}{'tokens':>8}{'largest':>10}{'mean':>10}")
    for family in FAMILIES:
        with TemporaryDirectory() as folder:
            _measure(family, Path(folder))


def _measure(family: str, folder: Path) -> None:
    seer = seers.make_seer(family, folder / "model")
    with (
        SGLangServer(seer.folder, seers.ENGINE, folder / "server.log") as server,
        pool_over([server.endpoint], seer.folder) as pool,
    ):
        one, several = _one_picture(seer), seers.various(seer)
        _tell(family, "one picture", seer, one, pool.generate(one, lockstep=True))
        _tell(family, "one picture, in the cache", seer, one, pool.generate(one, lockstep=True))
        first = pool.generate(several, lockstep=True)
        _tell(family, "two, one or none", seer, several, first)
        second = [seers.then_asked(seer, *each) for each in zip(several, first, strict=True)]
        _tell(family, "a second turn", seer, second, pool.generate(second, lockstep=True, first_wave=False))
        moved = _moved(seer, pool)
        _tell(family, "one picture, other weights", moved, one, pool.generate(one, lockstep=True))


def _one_picture(seer: Seer) -> list[SamplingRequest]:
    return [
        seer.request(seers.picture(number, 60 + 10 * number, 80), (20 + number,), seed=10 * number + sample)
        for number in range(16)
        for sample in range(4)
    ]


def _moved(seer: Seer, pool: ServerPool) -> Seer:
    seers.move_weights(seer.folder, seed=2)
    pool.load(StateTensors(load_file(seer.folder / "model.safetensors")), "moved")
    return Seer(seer.folder)


def _tell(
    family: str, kind: str, seer: Seer, requests: Sequence[SamplingRequest], completions: Sequence[Completion]
) -> None:
    apart = [each for pair in zip(requests, completions, strict=True) for each in _differences(seer, *pair)]
    print(f"{family:12}{kind:34}{len(apart):8}{max(apart):10.1e}{statistics.fmean(apart):10.1e}", flush=True)


def _differences(seer: Seer, request: SamplingRequest, completion: Completion) -> list[float]:
    assert request.pictures is not None
    ours = seer.logprobs(request.input_ids + completion.token_ids, request.pictures.files)
    theirs = torch.tensor(completion.logprobs)
    differences: list[float] = (ours[len(request.input_ids) - 1 :] - theirs).abs().tolist()
    return differences


if __name__ == "__main__":
    main()
