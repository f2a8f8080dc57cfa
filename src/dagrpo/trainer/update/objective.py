"""Objective of a micro-batch: corrected policy loss, terms and divergence."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.aggregation import Lengths, weights
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.corrections import off_policy_mask, weights_of
from dagrpo.algorithms.divergence import divergence
from dagrpo.algorithms.losses import LOSSES, aggregation_of, loss_of
from dagrpo.algorithms.terms import TERMS, Coefficient, computed
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.trainer.model.head import Extras


class Objective:
    """Section algorithm as a function of tokens, with the coefficients of its terms, which may change from step to step."""

    def __init__(
        self, algorithm: Algorithm, max_new_tokens: int, coefficients: Mapping[str, Sequence[float]] | None
    ) -> None:
        """Restore `coefficients` of a saved state; None: those of a new run."""
        advantage = ADVANTAGES.get(algorithm.advantage.name)
        self._algorithm = algorithm
        self._aggregation = aggregation_of(algorithm.aggregation, algorithm.loss)
        self._max_new_tokens = max_new_tokens
        self._added = computed(algorithm.terms)
        self._terms = {name: TERMS.get(name) for name in self._added}
        begun = {name: [config.coefficient] * 2 for name, config in self._added.items()}
        self.coefficients = {name: Coefficient(*pair) for name, pair in (coefficients or begun).items()}
        self.extras = Extras(entropy_gradient=any(term.needs_entropy for term in self._terms.values()))
        self.extras_before = Extras(collision=advantage.needs_policy)
        self.penalises = algorithm.kl.coefficient > 0 and algorithm.kl.place == "reward"
        selects = LOSSES.get(algorithm.loss.name).select is not None
        # Whether something needs every token of a step before its first update.
        self.looks_ahead = advantage.needs_policy or self.penalises or selects

    def loss(
        self, tokens: TokenBatch, lengths: Lengths, positive: Lengths, first: int, *, counts: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a micro-batch's part of its mini-batch's loss, and sums over its tokens for the metrics.

        The micro-batch's first sequence has the number `first` in the mini-batch. One that does not count is a filler.
        """
        shares = self._shares(tokens, lengths, first) * counts
        per_token, measured = self._policy_loss(tokens)
        loss = (per_token * shares).sum()
        for name, config in self._added.items():
            term = self._terms[name]
            result = term.function(tokens, config)
            own = self._shares(tokens, positive, first) * counts if term.positive_only else shares
            loss = loss + self.coefficients[name].applied * (result.per_token * own).sum()
            measured |= result.metrics
        return self._with_divergence(loss, tokens, shares, measured)

    def _policy_loss(self, tokens: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's loss per token, corrected and masked, and its metrics."""
        policy = loss_of(tokens, self._algorithm.loss)
        correction = weights_of(tokens, self._algorithm.correction)
        per_token, measured = policy.per_token * correction.per_token, {**policy.metrics, **correction.metrics}
        if self._algorithm.off_policy_mask > 0:
            mask = off_policy_mask(tokens, self._algorithm.off_policy_mask)
            per_token = per_token * mask
            measured["off_policy_masked_fraction"] = (~mask).sum()
        return per_token, measured

    def _with_divergence(
        self, loss: Tensor, tokens: TokenBatch, shares: Tensor, measured: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if tokens.reference_logprobs is None:
            return loss, measured
        kl = self._algorithm.kl
        estimate = divergence(tokens.logprobs, tokens.reference_logprobs, kl.estimator)
        measured["kl"] = estimate.detach().sum()
        if kl.place == "reward":
            return loss, measured
        if kl.corrected:
            estimate = tokens.ratio_to(tokens.old_logprobs) * estimate
        return loss + kl.coefficient * (estimate * shares).sum(), measured

    def penalty(self, logprobs: Tensor, reference_logprobs: Tensor | None) -> Tensor | None:
        """Return the divergence penalty on each token's reward; None if the reward has no such penalty. [tokens] float64"""
        if not self.penalises:
            return None
        assert reference_logprobs is not None, "computed before the update, since the objective penalises"
        kl = self._algorithm.kl
        return kl.coefficient * divergence(logprobs.double(), reference_logprobs.double(), kl.estimator)

    def adapt_coefficients(self, entropy: float) -> dict[str, float]:
        """Return this step's coefficients as metrics, and adapt them for the next step where a term asks for that.

        They stay unchanged if the entropy is not finite, which carries no information.
        """
        used = {f"{TERMS.label(name)}_coefficient": each.applied for name, each in self.coefficients.items()}
        for name, config in self._added.items():
            adapt = self._terms[name].adapted
            if adapt is not None and math.isfinite(entropy):
                self.coefficients[name] = adapt(self.coefficients[name].basis, entropy, config)
        return used

    def _shares(self, tokens: TokenBatch, lengths: Lengths, first: int) -> Tensor:
        """Return the weight of each token's value in the mini-batch. [tokens]"""
        per_token, denominator = weights(
            self._aggregation,
            tokens.sequence,
            first,
            lengths,
            max_new_tokens=self._max_new_tokens,
            sequences=tokens.sequences,
        )
        return per_token * (1 / denominator)
