"""Token sequences, and the padded or packed micro-batches made from them.

packed_rows.py holds the packed ones.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dagrpo.trainer.batches.images import PaddedPictures, SequencePictures
from dagrpo.trainer.batches.packed_rows import PackedBatch, Tail
from dagrpo.trainer.batches.sampling_mask import PaddedSupport, TokenSupport
from dagrpo.trainer.config.runtime import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Sequences side by side, padded on the right.

    Example: the sequence (5, 6, 7) with mask (F, F, T) beside (8, 9) with mask (F, T): input_ids [[5, 6, 7], [8, 9, 0]],
    rows [0, 1], columns [1, 0], targets [7, 9].
    """

    input_ids: Tensor  # [sequences, length] int64
    attention_mask: Tensor  # [sequences, length] int64, 0 on padding
    rows: Tensor  # [tokens] int64: the sequence of each trained token, from 0, ascending
    columns: Tensor  # [tokens] int64: the position that predicts it, one before its own
    targets: Tensor  # [tokens] int64: the token itself
    support: PaddedSupport | None = None  # sampling mask of the trained tokens; None: the whole vocabulary
    pictures: PaddedPictures | None = None  # None: no sequence shows a picture

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence."""
        return self.input_ids.shape[1]

    def predicting(self, hidden: Tensor) -> Tensor:
        """Return the hidden states that predict the trained tokens: [sequences, length, width] -> [tokens, width]"""
        return hidden[self.rows, self.columns]

    @classmethod
    def filler(cls, pad_token_id: int, device: torch.device) -> "PaddedBatch":
        """Return one sequence with one token to predict, for a rank that has no work left while others have."""
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        input_ids = torch.full((1, 2), pad_token_id, dtype=torch.int64, device=device)
        return cls(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            rows=zero,
            columns=zero,
            targets=input_ids[0, 1:],
        )


MicroBatch = PaddedBatch | PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequences:
    """Sequences of tokens, one after the other, and which of their tokens are trained on. On the CPU.

    "Trained" tokens are those with mask True: the policy's own in a rollout, the target's in supervised fine-tuning. A
    mask may have holes (a tool's output between two turns). Every sequence has at least one trained token, and its
    first token is never one, as nothing predicts it.
    """

    token_ids: Tensor  # [all tokens] int64
    loss_mask: Tensor  # [all tokens] bool
    lengths: Tensor  # [sequences] int64, prompts included
    pictures: SequencePictures | None = None  # at the placeholders among the tokens; None: no pictures
    trained: list[int] = field(init=False)  # [sequences]: how many tokens of each are trained on
    _starts: list[int] = field(init=False)  # [sequences + 1], into token_ids and loss_mask
    _trained_starts: list[int] = field(init=False)  # [sequences + 1], into the trained tokens
    prompt_lengths: list[int] = field(init=False)  # [sequences]: tokens before the first that is trained on, 1 or more
    prompt_numbers: list[int] = field(init=False)  # [sequences]: the same for the same prompt; from 0, as they come

    def __post_init__(self) -> None:
        """Assert that the sequences can be trained on (others are a bug of the caller), and index them."""
        starts = [0, *itertools.accumulate(self.lengths.tolist())]
        assert len(self.token_ids) == len(self.loss_mask) == starts[-1], "tokens, mask and lengths do not agree"
        assert not bool(self.loss_mask[starts[:-1]].any()), "nothing predicts a sequence's first token"
        masks = [self.loss_mask.numpy()[begin:end] for begin, end in itertools.pairwise(starts)]
        trained = [int(np.count_nonzero(part)) for part in masks]
        assert all(trained), "a sequence without a trained token has nothing to predict"
        assert self.pictures is None or len(self.pictures.places) == len(self.lengths)
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "trained", trained)
        object.__setattr__(self, "_trained_starts", [0, *itertools.accumulate(trained)])
        object.__setattr__(self, "prompt_lengths", [int(part.argmax()) for part in masks])
        object.__setattr__(self, "prompt_numbers", self._numbered())

    @classmethod
    def of(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_mask: Sequence[Sequence[bool]],
        pictures: Sequence[Sequence[bytes]] = (),
    ) -> "TokenSequences":
        """Build sequences from lists or arrays, [sequences][tokens] both, and each one's picture files; (): no pictures."""
        return cls(
            token_ids=_joined(token_ids, np.int64),
            loss_mask=_joined(loss_mask, np.bool_),
            lengths=torch.tensor([len(sequence) for sequence in token_ids], dtype=torch.int64),
            pictures=SequencePictures.of(pictures),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to send to other ranks."""
        return {
            "token_ids": self.token_ids,
            "loss_mask": self.loss_mask,
            "lengths": self.lengths,
            **({} if self.pictures is None else self.pictures.tensors()),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "TokenSequences":
        """Rebuild the sequences from the tensors of `tensors`, which may be among others."""
        return cls(
            token_ids=tensors["token_ids"],
            loss_mask=tensors["loss_mask"],
            lengths=tensors["lengths"],
            pictures=SequencePictures.from_tensors(tensors),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def trained_places(self, numbers: Sequence[int]) -> Tensor:
        """Return the indices of some sequences' trained tokens among those of all. [tokens] int64"""
        spans = [torch.arange(*self._trained_starts[number : number + 2]) for number in numbers]
        return torch.cat(spans) if spans else torch.zeros(0, dtype=torch.int64)

    def prompt(self, number: int) -> Tensor:
        """Return the tokens of a sequence before its first trained one. [tokens] int64, at least one"""
        start = self._starts[number]
        return self.token_ids[start : start + self.prompt_lengths[number]]

    def padded(self, numbers: Sequence[int], pad_token_id: int, device: torch.device) -> PaddedBatch:
        """Return some of the sequences as one padded batch, laid out on the CPU, so that the device need not be waited for."""
        spans = [self._span(number, after_prompt=False) for number in numbers]
        loss_mask = pad_sequence([self.loss_mask[span] for span in spans], batch_first=True)
        input_ids = pad_sequence([self.token_ids[span] for span in spans], batch_first=True, padding_value=pad_token_id)
        attention_mask = pad_sequence([torch.ones_like(self.token_ids[span]) for span in spans], batch_first=True)
        rows, columns = loss_mask[:, 1:].nonzero(as_tuple=True)
        return PaddedBatch(
            input_ids=input_ids.to(device, non_blocking=True),
            attention_mask=attention_mask.to(device, non_blocking=True),
            rows=rows.to(device, non_blocking=True),
            columns=columns.to(device, non_blocking=True),
            targets=input_ids[rows, columns + 1].to(device, non_blocking=True),
            pictures=None if self.pictures is None else self.pictures.padded(numbers),
        )

    def lay_out(
        self,
        numbers: Sequence[int],
        pad_token_id: int,
        device: torch.device,
        layout: Layout,
        *,
        share_prompts: bool = False,
    ) -> MicroBatch:
        """Return some of the sequences as one batch, padded or packed; only packed ones share prompts."""
        if layout == "packed":
            return self.packed(numbers, device, share_prompts=share_prompts)
        assert not share_prompts, "refused before, see model/prepare.py"
        return self.padded(numbers, pad_token_id, device)

    def packed(self, numbers: Sequence[int], device: torch.device, *, share_prompts: bool = False) -> PackedBatch:
        """Return some of the sequences, all without pictures, as one packed row.

        `share_prompts`: put a prompt that several of them begin with into the row once. Its last token stays with each sequence.
        """
        assert self.pictures is None, "refused before: a row has no place for pictures"
        shared = self._places_of_prompts(numbers) if share_prompts else {}
        tails = []
        for number in numbers:
            prompt = shared.get(self.prompt_numbers[number])
            span = self._span(number, after_prompt=prompt is not None)
            tails.append(Tail(token_ids=self.token_ids[span], loss_mask=self.loss_mask[span], prompt=prompt))
        firsts = {self.prompt_numbers[number]: number for number in reversed(numbers)}
        return PackedBatch.of(tails, [self.prompt(firsts[prompt])[:-1] for prompt in shared], device)

    def _places_of_prompts(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the prompts to compute once (several tokens, several sequences) with their indices in the row: the shortest first."""
        lengths = {self.prompt_numbers[number]: self.prompt_lengths[number] for number in numbers}
        sharing = Counter(self.prompt_numbers[number] for number in numbers)
        shared = sorted(
            (prompt for prompt in lengths if sharing[prompt] > 1 and lengths[prompt] > 1), key=lengths.__getitem__
        )
        return {prompt: place for place, prompt in enumerate(shared)}

    def _numbered(self) -> list[int]:
        seen: dict[bytes, int] = {}
        keys = (self.prompt(number).numpy().tobytes() for number in range(len(self)))
        return [seen.setdefault(key, len(seen)) for key in keys]

    def _span(self, number: int, *, after_prompt: bool) -> slice:
        """Return the slice of a sequence; `after_prompt`: of its part from the last token of its prompt on."""
        start, stop = self._starts[number : number + 2]
        return slice(start + self.prompt_lengths[number] - 1 if after_prompt else start, stop)


def _joined(parts: Sequence[Sequence[int]], kind: type[np.generic]) -> Tensor:
    """Return all parts, one after the other, as one tensor."""
    joined = np.empty(sum(map(len, parts)), dtype=kind)
    ends = itertools.pairwise(itertools.accumulate(map(len, parts), initial=0))
    for part, span in zip(parts, ends, strict=True):
        joined[slice(*span)] = np.frombuffer(part, np.bool_) if isinstance(part, bytes) else part
    return torch.from_numpy(joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Data of one step's rollouts that the update reads: their samples as token sequences, in the order of the rollouts.

    A trajectory has one sequence or several, next to each other. Trajectories that are left out have no sequence.
    """

    sequences: TokenSequences
    trajectories: Tensor  # [sequences] int64, ascending: the index of each sequence's trajectory in the step
    rollout_logprobs: Tensor  # [trained tokens] float32, the engine's
    positive: Tensor  # [sequences] bool, whether their trajectories' answers are right
    support: TokenSupport | None = None  # sampling mask of the trained tokens; None: the whole vocabulary
    counted: Tensor | None = None  # [sequences] bool, whether the loss counts them; None: all count
    teacher_logprobs: Tensor | None = None  # [trained tokens] float32; None without a teacher
    advantages: Tensor | None = None  # [trained tokens] float32; None until they are computed

    def lay_out(
        self,
        numbers: Sequence[int],
        pad_token_id: int,
        device: torch.device,
        layout: Layout = "padded",
        *,
        share_prompts: bool = False,
    ) -> MicroBatch:
        """Return some of the sequences as one batch; see TokenSequences.lay_out."""
        batch = self.sequences.lay_out(numbers, pad_token_id, device, layout, share_prompts=share_prompts)
        if self.support is None:
            return batch
        return replace(batch, support=self.support.padded(self.sequences.trained_places(numbers), device))

    def counts(self, sequence: int) -> bool:
        """Return True if the loss counts a sequence."""
        return self.counted is None or bool(self.counted[sequence])

    def counts_any(self, numbers: Sequence[int]) -> bool:
        """Return True if the loss counts at least one of these sequences."""
        return any(map(self.counts, numbers))

    def counted_tokens(self) -> Tensor:
        """Return whether the loss counts each trained token. [trained tokens] bool"""
        if self.counted is None:
            return torch.ones(len(self.rollout_logprobs), dtype=torch.bool)
        return self.counted.repeat_interleave(torch.tensor(self.sequences.trained))

    def spans(self, first: int, stop: int) -> list[slice]:
        """Return the sequences of each trajectory with an index from `first` on and below `stop`."""
        start, end = torch.searchsorted(self.trajectories, torch.tensor([first, stop])).tolist()
        _, counts = self.trajectories[start:end].unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        return [slice(*ends) for ends in itertools.pairwise(itertools.accumulate(counts.tolist(), initial=start))]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors but the advantages, to send to other ranks."""
        return {
            **self.sequences.tensors(),
            "trajectories": self.trajectories,
            "rollout_logprobs": self.rollout_logprobs,
            "positive": self.positive,
            **({} if self.counted is None else {"counted": self.counted}),
            **({} if self.teacher_logprobs is None else {"teacher_logprobs": self.teacher_logprobs}),
            **({} if self.support is None else self.support.tensors()),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Batch":
        """Rebuild the batch from the tensors of `tensors`."""
        return cls(
            sequences=TokenSequences.from_tensors(tensors),
            trajectories=tensors["trajectories"],
            rollout_logprobs=tensors["rollout_logprobs"],
            positive=tensors["positive"],
            counted=tensors.get("counted"),
            support=TokenSupport.from_tensors(tensors),
            teacher_logprobs=tensors.get("teacher_logprobs"),
        )
