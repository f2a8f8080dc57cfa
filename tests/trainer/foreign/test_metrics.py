"""Metrics of another trainer's lines under our names."""

import math

from dagrpo.trainer.foreign.metrics import named


def test_a_null_is_nan_and_keeps_its_column() -> None:
    step, found = named({"step": 3, "data": {"actor/lr": 0.5, "grad": None, "note": "x"}}, {"actor/lr": "rate"}, "verl")
    assert (step, found["rate"], sorted(found)) == (3, 0.5, ["rate", "verl/grad"])
    assert math.isnan(found["verl/grad"])
