import hashlib

from hypothesis import given
from hypothesis import strategies as st

from dagrpo.rollout.sampling import sampling_seed

PARTS = st.lists(st.integers() | st.text(), max_size=4)


def test_the_seed_is_sha256_of_the_parts_as_json() -> None:
    digest = hashlib.sha256(b'[0,"rollout",1,2,3]').hexdigest()
    assert sampling_seed(0, "rollout", 1, 2, 3) == int(digest[:16], 16) % 2**31
    assert sampling_seed(0, "rollout", 1, 2, 3) == 1781029776


def test_neighbours_and_swapped_parts_have_other_seeds() -> None:
    seeds = {sampling_seed(seed, step, sample) for seed in range(3) for step in range(30) for sample in range(30)}
    assert len(seeds) == 3 * 30 * 30
    assert sampling_seed(0, 1, 12) != sampling_seed(0, 11, 2)
    assert sampling_seed(0, 1) != sampling_seed(0, "1")


@given(st.integers(0, 2**31 - 1), PARTS)
def test_every_seed_is_one_that_sglang_takes(seed: int, parts: list[int | str]) -> None:
    assert 0 <= sampling_seed(seed, *parts) < 2**31
