import re

from dagrpo.data.config import Data
from dagrpo_toys.larger import load


def test_the_larger_of_two_numbers_is_asked_for_and_no_pair_is_in_both_splits() -> None:
    rows = load(Data.model_validate({"larger": {"train": 3000, "test": 1000}})).splits
    pairs = {
        split: [tuple(map(int, re.findall(r"[0-9]+", row.question))) for row in some] for split, some in rows.items()
    }
    assert rows["train"][0].question == f"Which is larger, {pairs['train'][0][0]} or {pairs['train'][0][1]}?"
    for split, some in rows.items():
        assert [row.ground_truth for row in some] == [str(max(pair)) for pair in pairs[split]]
        assert 0.4 < sum(a > b for a, b in pairs[split]) / len(some) < 0.6
    distinct = {frozenset(pair) for some in pairs.values() for pair in some}
    assert len(distinct) == 4000
    assert all(len(pair) == 2 for pair in distinct)
