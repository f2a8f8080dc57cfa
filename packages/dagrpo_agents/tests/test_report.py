"""What a program may report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_agents.programs.attempt import ProgramFailure, report_in


def test_the_last_line_is_the_report() -> None:
    assert report_in(b'talk\n{"reward": 1}\n{"reward": 0.5, "rewards": {"style": 2}}\n\n') == {
        "style": 2.0,
        "reward": 0.5,
    }


@pytest.mark.parametrize(
    "output", [b"", b"done", b'{"answer": 3}', b"[1]", b"[" * 100_000, b"\xff\n", b'{"reward": null}']
)
def test_a_program_need_not_report(output: bytes) -> None:
    assert report_in(output) == {}


@pytest.mark.parametrize(
    "report",
    [
        b'{"reward": "1"}',
        b'{"reward": 1e999}',
        b'{"reward": NaN}',
        b'{"rewards": {"style": -Infinity}}',
        b'{"reward": 1e39}',
        b'{"reward": 1%s}' % (b"0" * 400),
        b'{"rewards": [1]}',
        b'{"rewards": {"": 1}}',
        b'{"rewards": {"a\\u0007": 1}}',
    ],
)
def test_a_reward_that_is_no_number_is_the_programs_failure(report: bytes) -> None:
    with pytest.raises(ProgramFailure):
        report_in(report)


@given(st.binary(max_size=200))
def test_any_output_is_a_report_or_none(output: bytes) -> None:
    assert report_in(output) == {} or all(isinstance(value, float) for value in report_in(output).values())
