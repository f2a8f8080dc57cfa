"""The command `dagrpo`: a mistake is one sentence and exit code 1, wherever it is made."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dagrpo.cli.application import Commands, app, main
from dagrpo.config.project import TAKE_A_PATH, WORK_ANYWHERE, ProjectCommand
from dagrpo.core.errors import UserError

DAGRPO = Path(sys.executable).with_name("dagrpo")


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty folder, in this process."""

    def run_it(*arguments: str) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dagrpo", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, *capfd.readouterr())

    return run_it


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("inspect nowhere", "nowhere is not a checkpoint"),
        ("grade gsm8k nothing.jsonl", "nothing.jsonl is missing"),
        ("search nothing.parquet", "nothing.parquet is missing"),
        ("why nothing.json", "`dagrpo why FILE` is an option now: `dagrpo status --why FILE`."),
        ("new loss gspo", "A loss `gspo` already exists"),
        ("lineage nothing.json", "nothing.json is neither a file nor a digest"),
        ("compare one two", "There is no experiment `one`"),
        ("status --why nothing.json", "nothing.json is not made by a stage"),
        ("status tiny --why nothing.json", "--why FILE stands alone: leave out the names of experiments."),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").touch()
    done = run(*words.split())
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["Snakefile"]


COMMANDS = (
    "clean --override-runs",
    "compare one two",
    "generate",
    "lineage nothing.json",
    "plan",
    "profile",
    "replay one",
    "show one --best 1",
    "status",
    "status --why one",
    "tracking rebuild",
    "train --to half --rollouts-only",
    "ui",
    "use arithmetic_tiny",
    "verify one",
    "warm",
)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_in_another_folder_is_refused_before_it_looks_at_anything(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one/runs/seed_0/rollouts").mkdir(parents=True)  # as in the folder results/ of a project
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, words.split()).exception
    assert isinstance(refused, UserError)
    assert "has no Snakefile: change to the folder of a study" in str(refused)


def test_every_command_needs_the_project_or_is_listed_as_one_that_works_anywhere() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    needing = {name for name, command in commands.items() if isinstance(command, ProjectCommand)}
    assert needing | WORK_ANYWHERE | {"tracking"} == set(commands)
    assert needing.isdisjoint(WORK_ANYWHERE)
    assert needing > TAKE_A_PATH


@pytest.mark.parametrize("name", ["results/one/runs/seed_0", "rollouts.parquet"])
def test_a_path_is_read_in_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name.endswith(".parquet"):
        Path(name).touch()
    else:
        (tmp_path / name / "rollouts").mkdir(parents=True)
    refused = CliRunner().invoke(app, ["show", name]).exception
    assert "Snakefile" not in str(refused)
    assert name in str(refused)


def test_a_misspelt_command_is_not_answered_with_one_that_is_gone(run: Run) -> None:
    done = run("whyy")
    assert done.returncode == 2
    assert "No such command 'whyy'" in done.stderr
    assert "'why'" not in done.stderr
    assert "'verify'" in run("verfy").stderr


def test_its_version_is_that_of_the_package(tmp_path: Path) -> None:
    """As a process of its own, as all commands are."""
    done = subprocess.run([DAGRPO, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    assert done.stdout.startswith(f"dagrpo {version('dagrpo')}, Python 3.")


def _completed(run: Run, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What bash is offered for the last word, by the protocol of the script that `--show-completion` prints."""
    monkeypatch.setenv("_DAGRPO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    return run("").stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dagrpo compare arith", ["arithmetic_tiny", "arithmetic_tiny-gspo"]),
        ("dagrpo status oth", ["other"]),
        ("dagrpo verify oth", ["other"]),
        ("dagrpo replay oth", ["other"]),
        ("dagrpo show other --task ", ["aime_2024"]),
        ("dagrpo show --task ", ["aime_2024", "arithmetic"]),
        ("dagrpo show arithmetic_tiny --seed ", ["0", "12"]),
        ("dagrpo use params", ["params.yaml"]),
        ("dagrpo use params.yaml gs", ["gspo"]),
        ("dagrpo plan gs", ["gspo"]),
        ("dagrpo plan --gpu h100", ["h100", "h100-nvl", "h100-pcie"]),
        ("dagrpo grade geo3k_t", ["geo3k_tool"]),
        ("dagrpo convert a b --to hu", ["huggingface"]),
        ("dagrpo new lo", ["loss"]),
    ],
)
def test_a_shell_completes(
    words: str, offered: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = ("arithmetic_tiny/runs/seed_0/eval/arithmetic/base", "other/runs/seed_0/eval/aime_2024/base")
    for folder in (*evaluated, "arithmetic_tiny/runs/seed_12", "arithmetic_tiny-gspo", "../presets/algorithms"):
        (tmp_path / "results" / folder).mkdir(parents=True)
    for name in ("presets/algorithms/gspo.yaml", "params.yaml"):
        (tmp_path / name).touch()
    assert _completed(run, monkeypatch, words) == offered


def test_a_command_of_a_package_that_is_not_installed_says_what_installs_it() -> None:
    with pytest.raises(UserError, match=r"pip install 'dagrpo\[publish\]'"):
        Commands().get_command(None, "crate")
