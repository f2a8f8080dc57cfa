"""The end of a run: its summary, and what to do next."""

from pathlib import Path

import pytest

from dagrpo.pipeline.snakemake import workflow


@pytest.mark.parametrize(("below_make", "programs"), [(False, ""), (True, ".venv/bin/")])
def test_a_run_ends_with_three_commands_that_can_be_given_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    below_make: bool,
    programs: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if below_make:
        monkeypatch.setenv("MAKELEVEL", "1")
    summary = Path("results/mine/report/summary.md")
    summary.parent.mkdir(parents=True)
    summary.write_text("| task | base |\n|---|---|\n| sums | 50% |\n")
    workflow._show_results("mine", 0.001)
    *_, title, show, ui, vary = capsys.readouterr().err.splitlines()
    assert title == "Next:"
    assert [line.partition("#")[0].strip() for line in (show, ui, vary)] == [
        f"{programs}dagrpo show mine",
        f"{programs}dagrpo ui",
        f"{programs}snakemake --cores all target --config training__learning_rate=0.0005",
    ]


def test_an_override_run_ends_with_its_comparison() -> None:
    command, _ = workflow._next_commands("mine~1a2b3c4d", 0.001)[-1]
    assert command.endswith("dagrpo compare mine mine~1a2b3c4d")
