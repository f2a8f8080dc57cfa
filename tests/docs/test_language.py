"""What `make lint` refuses in docstrings, descriptions, messages and pages, and what it lets pass."""

import pytest
from tests.language import faults, faults_of_page


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""What opens a file."""\n', "a docstring opens with 'What'"),
        ('"""' + "word " * 13 + '"""\n', "more than 12 words"),
        ("limit: int = Field(1, description='What of it is kept.')\n", "a description opens with 'What'"),
        ("limit: int = Field(1, description=f'Steps until it {x} goes on.')\n", "'goes on' in a description"),
        ("raise UserError(f'{path} is taken over: run again.')\n", "'taken over' in a message"),
        ("x = 1  # whoever reads it\n", "'whoever' in a comment"),
        ("AutoConfig.from_pretrained(folder)\n", "may run a checkpoint's code"),
        ("AutoModel.from_config(config, trust_remote_code=trusted)\n", "may run a checkpoint's code"),
    ],
)
def test_a_fault_of_a_module_is_found(source: str, fault: str) -> None:
    (found,) = [text for _, text in faults(source)]
    assert fault in found


def test_plain_words_of_a_module_pass() -> None:
    source = '"""File access."""\n\nlimit: int = Field(1, description="Most steps.")\nraise ValueError("told")\n'
    assert list(faults(source)) == []


def test_prose_of_a_page_is_checked_line_by_line_and_code_is_left_out() -> None:
    page = "# Page\n\nA try\ngoes on, `goes on`.\n\n    anew\n\n```sh\nanew\n```\n\n[text](hand-over.md) told\n"
    assert list(faults_of_page(page)) == [(4, "'goes on' on a page"), (12, "'told' on a page")]
    assert [text for _, text in faults_of_page("It is a try of gates.\n")] == ["'a try' on a page", "'gates' on a page"]
