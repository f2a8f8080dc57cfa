"""From a loss per token to the loss of a mini-batch, by the name that algorithm.aggregation gives."""

from collections.abc import Sequence


def _token_mean(lengths: Sequence[int]) -> float:
    """Every token of the mini-batch weighs the same (DAPO, arXiv 2503.14476, section 3.3)."""
    return float(sum(lengths))


_DENOMINATORS = {"token-mean": _token_mean}


def denominator(aggregation: str, lengths: Sequence[int]) -> float:
    """What the summed loss of a mini-batch is divided by. lengths: [completions], in tokens."""
    return _DENOMINATORS[aggregation](lengths)
