"""How much of the fault harness runs: a bounded part by `make nightly`, the whole by `make faults`."""

import os

import pytest

WHOLE = os.environ.get("DAGRPO_FAULTS") == "whole"
only_whole = pytest.mark.skipif(not WHOLE, reason="a part of the fault harness that only `make faults` runs")


def number_of(what: str, default: int) -> int:
    """How many faults of a kind to cause, which the environment may say: DAGRPO_FAULTS_KILLS, for one."""
    return int(os.environ.get(f"DAGRPO_FAULTS_{what}", default))


def seed() -> int:
    """The seed of all random choices: DAGRPO_FAULTS_SEED repeats those of an earlier run."""
    return number_of("SEED", int.from_bytes(os.urandom(3)))
