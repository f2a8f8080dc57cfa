"""Importance weights of tokens and sequences, truncated or masked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, masked, ratios, truncated
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


# No correction: the engine's samples count as the trainer's policy's.
class NoCorrection(Choice):
    """No correction."""


def none(batch: TokenBatch, config: NoCorrection) -> TokenWeights:
    """Return 1 on each token."""
    return TokenWeights(per_token=batch.old_logprobs.new_ones(len(batch.old_logprobs)))


NONE = Correction(config=NoCorrection, function=none, weighs=False)


# Truncated importance weights of tokens (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
class TokenTruncated(Choice):
    """TIS: each token's loss times its importance weight, cut at a maximum."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(2.0, description="No weight is larger than this.")


def token_truncated(batch: TokenBatch, config: TokenTruncated) -> TokenWeights:
    """Return w = min(exp(old - rollout logprob), maximum). [tokens]

    Example: a token twice as likely to the trainer as to the engine weighs 2; one eight times as likely weighs 2, too.
    """
    return truncated(ratios(log_ratios(batch)), config.maximum)


TOKEN_TRUNCATED = Correction(config=TokenTruncated, function=token_truncated)


# IcePop: token importance weights, 0 where engine and trainer differ much (Ling Team 2025, arXiv 2510.18855).
class TokenMasked(Choice):
    """IcePop: each token's loss times its importance weight, or times 0 where that is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="A token with a smaller weight is masked.")
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(5.0, description="A token with a larger weight is masked.")


def token_masked(batch: TokenBatch, config: TokenMasked) -> TokenWeights:
    """Return w = exp(old - rollout logprob) where minimum <= w <= maximum, else 0. [tokens]

    Example: a token twice as likely to the trainer as to the engine weighs 2; one eight times as likely weighs nothing.
    """
    weights = ratios(log_ratios(batch))
    return masked(weights, weights, config.minimum, config.maximum)


TOKEN_MASKED = Correction(config=TokenMasked, function=token_masked)


# Truncated importance weights of sequences. Liu, Li et al. 2025, "When speed kills stability: demystifying RL collapse from the training-
# inference mismatch".
class SequenceTruncated(Choice):
    """Each token's loss times the importance weight of its whole sequence, cut at a maximum."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(2.0, description="No weight is larger than this.")


def sequence_truncated(batch: TokenBatch, config: SequenceTruncated) -> TokenWeights:
    """Return w = min(exp(sum over the sequence of old - rollout logprob), maximum) on each of its tokens. [tokens]

    Unbiased but for the cut, and of a variance that grows with the length. Example: two tokens, each 1.2 times as likely
    to the trainer as to the engine, weigh 1.44 both.
    """
    return truncated(ratios(batch.sum_of_sequence(log_ratios(batch))), config.maximum)


SEQUENCE_TRUNCATED = Correction(config=SequenceTruncated, function=sequence_truncated)


# Sequence MIS: sequence importance weights, 0 where engine and trainer differ much. Liu, Li et al. 2025, "When speed kills stability:
# demystifying RL collapse from the training-inference mismatch".
class SequenceMasked(Choice):
    """Each token's loss times the importance weight of its whole sequence, or times 0 where that is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="A sequence with a smaller weight is masked; 0: none is."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        3.0, description="A sequence with a larger weight is masked."
    )


def sequence_masked(batch: TokenBatch, config: SequenceMasked) -> TokenWeights:
    """Return w = exp(sum over the sequence of old - rollout logprob) where minimum <= w <= maximum, else 0, on its tokens. [tokens]

    Example: two tokens, each twice as likely to the trainer as to the engine: their sequence's weight is 4, so neither is
    learned from.
    """
    weights = ratios(batch.sum_of_sequence(log_ratios(batch)))
    return masked(weights, weights, config.minimum, config.maximum)


SEQUENCE_MASKED = Correction(config=SequenceMasked, function=sequence_masked)


# Token importance weights, 0 where their geometric mean is far from 1. Liu, Li et al. 2025, "When speed kills stability", part 3, whose
# bounds these are; NeMo RL calls it seq-mask-tis.
class GeometricMasked(Choice):
    """Each token's loss times its importance weight, or times 0 where its sequence's geometric mean is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        0.999, description="A sequence with a smaller geometric mean is masked."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.001, description="A sequence with a larger geometric mean is masked."
    )


def geometric_masked(batch: TokenBatch, config: GeometricMasked) -> TokenWeights:
    """Return w = exp(old - rollout logprob) where minimum <= exp(its mean over the sequence) <= maximum, else 0. [tokens]

    The mean does not grow with the length, as the sum does: long sequences are not masked for being long. No weight is cut.
    """
    of_tokens = log_ratios(batch)
    return masked(ratios(of_tokens), ratios(batch.mean_of_sequence(of_tokens)), config.minimum, config.maximum)


GEOMETRIC_MASKED = Correction(config=GeometricMasked, function=geometric_masked)
