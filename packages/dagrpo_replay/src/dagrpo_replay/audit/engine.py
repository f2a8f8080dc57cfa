"""Tokens derived from weights and seeds, in the place of an engine.

SGLang adds to the logprob of each token a Gumbel number, which follows from the request's seed, the position and the token, and takes the
largest sum. Here the policy reads a recorded completion in one forward pass; each of its tokens is explained if its sum is the largest,
or within a margin of it, as other kernels round differently.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.modules import empty_model
from dagrpo.checkpoints.sharded import read_weights
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, Tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.section import HeadDtype
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.utils.files import read_object
from dagrpo.utils.murmur import murmur_hash32
from dagrpo_replay.audit.checks import row_name

# Rounding of a logit, by the type in which the engine computes, as a share of the position's largest: the margin of a sum and of a
# logprob, and what decides the order of two probabilities.
MARGINS = {"float32": (1e-4, 2e-6), "float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2)}
LARGEST_HASH = 2**32 - 1
LARGEST_LOGIT = 100.0  # of which a margin is a share: a model may have been made for a wide one
GENERATION = "generation_config.json"
OF_A_SUM = 1e-4  # relative: how far another kernel's sum of all probabilities may be
SLICE = 1 << 24  # sums that are in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion of a table of attempts."""

    name: str  # of its attempt
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    support: tuple[Any, ...]  # the sampling mask of each token; (): the whole vocabulary


def turns_by_seed(rows: Sequence[Mapping[str, Any]]) -> dict[int, Turn]:
    """Return the completions of a table of attempts by their seeds: an attempt's own, and one of each later turn."""
    turns: dict[int, Turn] = {}
    for place, row in enumerate(rows):
        ids, logprobs, support = row["completion_ids"], row["rollout_logprobs"], row.get("sampling_support") or []
        lengths = [n for each in row["samples"] for n in _runs(each["loss_mask"])] or [len(ids)]
        if not sum(lengths) == len(ids) == len(logprobs) or len(support) not in (0, len(ids)):
            raise UserError(f"{row_name(place, row)}: tokens, masks and logprobs differ in number")
        first = 0
        for number, length in enumerate(lengths):
            own = slice(first, first := first + length)
            seed = row["sampling_seed"]
            turns[seed if number == 0 else sampling_seed(seed, "turn", number)] = Turn(
                name=f"{row_name(place, row)}, turn {number + 1}",
                token_ids=tuple(ids[own]),
                logprobs=tuple(logprobs[own]),
                support=tuple(support[own]),
            )
    return turns


def _runs(mask: Sequence[bool]) -> Iterator[int]:
    """Yield the length of each run of True."""
    length = 0
    for is_written in [*mask, False]:
        if length and not is_written:
            yield length
        length = length + 1 if is_written else 0


@dataclass(slots=True, kw_only=True)
class Explained:
    """Tokens that an audit has derived so far."""

    tokens: int = 0
    exact: int = 0  # those with the largest sum
    near: int = 0  # those that miss it by no more than the margin
    gap: float = 0.0  # nats, the most by which one of these does
    unlike: float = 0.0  # nats, the largest difference from a recorded logprob
    ties: int = 0  # tokens whose place in the order of probabilities, which top_p and top_k draw by, rounding decides
    faults: list[str] = field(default_factory=list)


class DerivingEngine:
    """Policy that explains recorded completions, and writes those that the table lacks, such as greedy ones."""

    def __init__(
        self, model: PreTrainedModel, stops: Collection[int], turns: Mapping[int, Turn], *, dtype: str, version: str
    ) -> None:
        self.explained = Explained()
        self.float32_head = False
        self.explains = True  # False: completions are input, of which nothing is derived
        self._model = model
        self._stops = stops
        self._turns = turns
        self._margin, self._tie = MARGINS[dtype]
        self._version = version

    @property
    def as_engine(self) -> RolloutEngine:
        """Return it with the type of an engine: a step's sampler asks nothing but `generate`, and a teacher is asked `score`."""
        return cast("RolloutEngine", self)

    def generate(self, requests: Sequence[SamplingRequest], **how: Any) -> list[Completion]:
        """Return the recorded completion of each request, explained."""
        # SGLang draws by rank instead of by token for requests with limits, and for those that were in a batch with one: greedy ones, too.
        limited = [each.temperature == 0 or each.top_k != -1 or each.top_p < 1 for each in requests]
        others = (True, False) if any(limited) else (False,)
        pairs = zip(requests, limited, strict=True)
        return [self._completion(request, by_rank=(True,) if own else others) for request, own in pairs]

    def score(self, requests: Sequence[ScoringRequest], **how: Any) -> list[tuple[float, ...]]:
        """Return logprobs at temperature 1, as an engine does."""
        return [self._scores(request) for request in requests]

    def _scores(self, request: ScoringRequest) -> tuple[float, ...]:
        own = torch.tensor(request.token_ids[request.first :])
        logits = self._logits(request.token_ids, len(own) + 1)[:-1]
        return tuple(logits.log_softmax(-1).gather(1, own[:, None])[:, 0].tolist())

    def _completion(self, request: SamplingRequest, by_rank: tuple[bool, ...]) -> Completion:
        turn = self._turns.get(request.seed)
        if turn is not None and not self._knows(turn.token_ids):
            self.explained.faults.append(f"{turn.name}: it has tokens that the policy does not know")
            turn = None
        if turn is None:
            turn = self._written(request, by_rank=by_rank[0])
        elif self.explains:
            self._explain(request, turn, by_rank)
        return Completion(
            token_ids=turn.token_ids,
            logprobs=turn.logprobs,
            finish_reason="stop" if turn.token_ids and turn.token_ids[-1] in self._stops else "length",
            weight_version=self._version,
            support=turn.support,
        )

    def _knows(self, token_ids: Sequence[int]) -> bool:
        return all(0 <= token < self._model.config.get_text_config().vocab_size for token in token_ids)

    def _explain(self, request: SamplingRequest, turn: Turn, by_rank: tuple[bool, ...]) -> None:
        faults, tokens, count = self.explained.faults, torch.tensor(turn.token_ids), len(turn.token_ids)
        stopped = [at for at, token in enumerate(turn.token_ids) if token in self._stops]
        if stopped[:1] != [count - 1] and (stopped or count != request.max_new_tokens):
            end = f"goes on after the stop token at place {stopped[0]}" if stopped else "ends without a stop token"
            faults.append(f"{turn.name}: the completion of {count} tokens {end}")
        if turn.support and not request.support:
            faults.append(f"{turn.name}: it has sampling masks, and none are due")
            turn = replace(turn, support=())
        logits = self._logits((*request.input_ids, *turn.token_ids), count + 1)[:-1]
        rows = max(1, SLICE // logits.shape[1])
        for first in range(0, count, rows):
            own = slice(first, first + rows)
            position = len(request.input_ids) - 1 + first
            forms = [sums(logits[own], request, position, by_rank=each) for each in by_rank]
            self._count(turn, first, tokens[own], logits[own], request, forms)

    def _count(
        self,
        turn: Turn,
        first: int,
        tokens: Tensor,
        logits: Tensor,
        request: SamplingRequest,
        forms: Sequence[Tensor],
    ) -> None:
        """Count the tokens of a slice that begins at place `first`. forms: sums [tokens, vocabulary], of which one explains a token."""
        seen, column = self.explained, tokens[:, None]
        largest = logits.abs().amax(1).clamp(max=LARGEST_LOGIT).double() / (request.temperature or 1)
        margin = largest * self._margin
        gaps = torch.stack([(each.amax(1) - each.gather(1, column)[:, 0]) for each in forms]).amin(0)
        support = turn.support[first : first + len(tokens)]
        logprobs = _logprobs(logits, request, support).gather(1, column)[:, 0]
        unlike = (logprobs - torch.tensor(turn.logprobs[first : first + len(tokens)])).abs()
        seen.tokens += len(tokens)
        seen.exact += int((gaps == 0).sum())
        near = gaps[(gaps > 0) & (gaps <= margin)]
        seen.near += len(near)
        seen.gap = max(seen.gap, float(near.max()) if len(near) else 0.0)
        for at in (~(gaps <= margin)).nonzero()[:, 0].tolist():
            best = int(forms[0][at].argmax())
            place, margins = (
                len(request.input_ids) - 1 + first + at,
                (float(margin[at]), float(largest[at]) * self._tie),
            )
            if _may_win(logits[at], int(tokens[at]), request, place, margins):
                seen.ties += 1
            else:
                seen.faults.append(
                    f"{turn.name}: token {first + at} is {int(tokens[at])}, and weights and seed give {best}"
                )
        if request.support:
            left = [set((forms[0][at] > -torch.inf).nonzero()[:, 0].tolist()) for at in range(len(tokens))]
            recorded = [*map(set, support)] or [set[int]()] * len(tokens)
            for at, ids in enumerate(recorded):
                every, _, _, _, may_stay, stays = _ordered(logits[at], request, float(largest[at]) * self._tie)
                if not ids ^ left[at] <= {*every[may_stay & ~stays].tolist()}:
                    seen.faults.append(f"{turn.name}: the sampling mask of token {first + at} is another one")
        seen.unlike = max(seen.unlike, float(unlike.max()) if len(unlike) else 0.0)
        for at in (~(unlike <= margin)).nonzero()[:1, 0].tolist():
            mine, theirs = turn.logprobs[first + at], float(logprobs[at])
            seen.faults.append(
                f"{turn.name}: the logprob of token {first + at} is {mine:.4f}, and {theirs:.4f} is derived"
            )

    def _written(self, request: SamplingRequest, *, by_rank: bool) -> Turn:
        """Write a completion token by token."""
        ids, logprobs = list(request.input_ids), list[float]()
        while len(logprobs) < request.max_new_tokens and not (logprobs and ids[-1] in self._stops):
            logits = self._logits(ids, 1)
            best = int(sums(logits, request, len(ids) - 1, by_rank=by_rank).argmax())
            logprobs.append(float(_logprobs(logits, request, ())[0, best]))
            ids.append(best)
        own = tuple(ids[len(request.input_ids) :])
        return Turn(name="", token_ids=own, logprobs=tuple(logprobs), support=())

    def _logits(self, token_ids: Sequence[int], count: int) -> Tensor:
        """Return the logits at the last `count` tokens. [count, vocabulary], float32, on the CPU"""
        ids = torch.tensor([token_ids], device=self._model.device)
        with torch.inference_mode():
            if self.float32_head:
                head: Any = self._model.get_output_embeddings()
                hidden = self._model.base_model(ids).last_hidden_state[0, -count:]
                return linear(hidden.float(), head.weight.float()).cpu()
            logits: Tensor = self._model(ids, logits_to_keep=count).logits[0]
            return logits.float().cpu()


def sums(logits: Tensor, request: SamplingRequest, position: int, *, by_rank: bool) -> Tensor:
    """Return what SGLang takes the largest of, for tokens drawn at `position` and after it. [tokens, vocabulary] -> float64, likewise

    As in sglang.srt.layers.sampler: multinomial_with_seed and top_k_top_p_min_p_sampling_from_probs_torch. `by_rank`: the Gumbel number
    belongs to the rank of a token's probability, and not to its id. At temperature 0 the logits themselves.
    """
    if request.temperature == 0:
        return logits.double()
    probs = (logits / request.temperature).softmax(-1)
    gumbel = _gumbel(request.seed, position, *probs.shape)
    if not by_rank:
        return gumbel.add_(probs.log().double())
    ordered, ids = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    if request.top_k != -1:
        ordered[:, request.top_k :] = 0
    ordered[before > request.top_p] = 0
    return torch.empty_like(gumbel).scatter_(1, ids, gumbel.add_(ordered.double().log()))


def _gumbel(seed: int, position: int, count: int, vocabulary: int) -> Tensor:
    seeds = torch.full((count,), seed, dtype=torch.uint64)
    hashed = murmur_hash32(seeds, torch.arange(position, position + count), torch.arange(vocabulary))
    x = hashed.to(torch.float64) / LARGEST_HASH
    x.log_().clamp_(min=torch.finfo(x.dtype).min, max=-(2.0**-32)).neg_()
    return x.log_().neg_()


def _ordered(logits: Tensor, request: SamplingRequest, margin: float) -> tuple[Tensor, ...]:
    """Return a position's tokens by falling probability: ids, logprobs, the first rank that each may have and the one after its
    last, whether top_p and top_k may leave it, and whether they do in any case. margin: nats, within which two change places.
    """
    logprobs, ids = (logits / request.temperature).log_softmax(-1).sort(descending=True)
    first = torch.searchsorted(-logprobs, -logprobs - margin)
    after = torch.searchsorted(-logprobs, -logprobs + margin, right=True)
    before, slack = logprobs.exp().cumsum(-1) - logprobs.exp(), math.exp(2 * margin + OF_A_SUM)
    top_k = len(ids) if request.top_k == -1 else request.top_k
    may_stay = (first < top_k) & (before / slack <= request.top_p)
    stays = (after <= top_k) & ((before * slack <= request.top_p) | (request.top_p == 1))
    return ids, logprobs, first, after, may_stay, stays


def _may_win(logits: Tensor, token: int, request: SamplingRequest, position: int, margins: tuple[float, float]) -> bool:
    """Return True if rounding, which changes ranks, may give a token the largest sum of a draw by rank. margins: of a sum, a logprob."""
    if request.temperature == 0 or (request.top_k == -1 and request.top_p == 1):
        return False
    ids, logprobs, first, after, may_stay, stays = _ordered(logits, request, margins[1])
    gumbel, own = _gumbel(request.seed, position, 1, len(ids))[0], int((ids == token).nonzero()[0])
    best = logprobs[own] + gumbel[first[own] : after[own]].max() + margins[0]
    rivals = (stays & (logprobs + gumbel > best)).nonzero()[:, 0].tolist()
    lowest = (logprobs[rank] + gumbel[first[rank] : after[rank]].min() for rank in rivals)
    return bool(may_stay[own]) and all(bool(each <= best) for each in lowest)


def _logprobs(logits: Tensor, request: SamplingRequest, support: Sequence[Any]) -> Tensor:
    """Return logprobs of the tempered softmax over the support. [tokens, vocabulary]"""
    tempered = logits / (request.temperature or 1.0)
    if support:
        left = torch.full_like(tempered, -torch.inf)
        for at, ids in enumerate(support):
            left[at, torch.tensor(list(ids))] = 0
        tempered = tempered + left
    return tempered.log_softmax(-1)


def deriving_engine(
    folder: Path,
    tensors: Tensors | None = None,
    turns: Mapping[int, Turn] | None = None,
    *,
    dtype: str,
    head_dtype: HeadDtype,
    version: str = "",
    device: torch.device | None = None,
) -> DerivingEngine:
    """Return an engine with the model of a checkpoint's folder. tensors: other weights than the folder's."""
    model = empty_model(folder, NAMED_DTYPES[dtype])
    read_weights(model, open_tensors(folder) if tensors is None else tensors)
    stops = stop_tokens(folder, model)
    engine = DerivingEngine(model.to(device or "cpu"), stops, turns or {}, dtype=dtype, version=version)
    engine.float32_head = head_dtype == "float32"
    return engine


def stop_tokens(folder: Path, model: PreTrainedModel) -> set[int]:
    """Return the tokens at which SGLang ends a completion: those of tokenizer, configuration and generation_config.json."""
    named: list[Any] = [load_tokenizer(folder).eos_token_id, model.config.get_text_config().eos_token_id]
    if (folder / GENERATION).is_file():
        named.append(read_object(folder / GENERATION).get("eos_token_id"))
    return {int(each) for one in named if one is not None for each in (one if isinstance(one, list) else [one])}


@contextmanager
def open_teacher_engine(
    model: Path,
    config: Any,
    log: Path,
    *,
    dtype: str,
    head_dtype: HeadDtype = None,
    weights: Tensors | None = None,
    **others: Any,
) -> Iterator[RolloutEngine]:
    """Open a teacher in the place of its engine."""
    yield deriving_engine(model, weights, dtype=dtype, head_dtype=head_dtype).as_engine
