"""The command dagrpo: a mistake is one sentence and exit code 1; every example of a help is taken."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer
from tests.docs.commands import Command, commands_of, require_valid
from typer.testing import CliRunner

from dagrpo.cli.application import Commands, app, main
from dagrpo.config.places import ROOT
from dagrpo.config.project import TAKE_A_PATH, WORK_ANYWHERE, ProjectCommand
from dagrpo.core.errors import UserError

DAGRPO = Path(sys.executable).with_name("dagrpo")

Run = Callable[..., tuple[int, str, str]]  # exit code, stdout, stderr


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty folder, in this process."""

    def run_it(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dagrpo", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code if isinstance(ended.value.code, int) else 0, *capfd.readouterr())

    return run_it


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("inspect nowhere", "nowhere is not a checkpoint"),
        ("grade gsm8k nothing.jsonl", "nothing.jsonl is missing"),
        ("search nothing.parquet", "nothing.parquet is missing"),
        ("new loss gspo", "A loss `gspo` already exists"),
        ("lineage nothing.json", "nothing.json is neither a file nor a digest"),
        ("compare one two", "There is no experiment `one`"),
        ("status --why nothing.json", "nothing.json is not made by a stage"),
        ("status tiny --why nothing.json", "--why FILE stands alone: leave out the names of experiments."),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").touch()
    code, _, said = run(*words.split())
    assert code == 1
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["Snakefile"]


def test_every_command_needs_the_project_or_is_listed_as_one_that_works_anywhere() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    needing = {name for name, command in commands.items() if isinstance(command, ProjectCommand)}
    assert needing | WORK_ANYWHERE | {"tracking"} == set(commands)
    assert needing.isdisjoint(WORK_ANYWHERE)
    assert needing > TAKE_A_PATH


@pytest.mark.parametrize(
    "words", ["clean --override-runs", "show one --best 1", "status --why one", "tracking rebuild"]
)
def test_a_command_in_another_folder_is_refused_before_it_looks_at_anything(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one/runs/seed_0/rollouts").mkdir(parents=True)  # as in the folder results/ of a project
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, words.split()).exception
    assert isinstance(refused, UserError)
    assert "has no Snakefile: change to the folder of a study" in str(refused)


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


def test_its_version_is_that_of_the_package(tmp_path: Path) -> None:
    """As a process of its own, as all commands are."""
    done = subprocess.run([DAGRPO, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    assert done.stdout.startswith(f"dagrpo {version('dagrpo')}, Python 3.")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dagrpo compare arith", ["arithmetic_tiny", "arithmetic_tiny-gspo"]),
        ("dagrpo show other --task ", ["aime_2024"]),
        ("dagrpo show --task ", ["aime_2024", "arithmetic"]),
        ("dagrpo show arithmetic_tiny --seed ", ["0", "12"]),
        ("dagrpo use params", ["params.yaml"]),
        ("dagrpo use params.yaml gs", ["gspo"]),
        ("dagrpo plan --gpu h100", ["h100", "h100-nvl", "h100-pcie"]),
        ("dagrpo grade geo3k_t", ["geo3k_tool"]),
        ("dagrpo convert a b --to hu", ["huggingface"]),
    ],
)
def test_a_shell_completes(
    words: str, offered: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the protocol of the script that `--show-completion` prints for bash."""
    evaluated = ("arithmetic_tiny/runs/seed_0/eval/arithmetic/base", "other/runs/seed_0/eval/aime_2024/base")
    for folder in (*evaluated, "arithmetic_tiny/runs/seed_12", "arithmetic_tiny-gspo", "../presets/algorithms"):
        (tmp_path / "results" / folder).mkdir(parents=True)
    for name in ("presets/algorithms/gspo.yaml", "params.yaml"):
        (tmp_path / name).touch()
    values = {"_DAGRPO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert run("")[1].splitlines() == offered


def test_a_command_of_a_package_that_is_not_installed_says_what_installs_it() -> None:
    with pytest.raises(UserError, match=r"pip install 'dagrpo\[publish\]'"):
        Commands().get_command(None, "crate")


COMMANDS: dict[str, click.Command] = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    if not command.hidden
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_of_it(name: str) -> None:
    assert re.match(rf"Examples?: `dagrpo {name}", COMMANDS[name].epilog or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_are_what_the_command_line_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for example in re.findall(r"`(dagrpo [^`]+)`", COMMANDS[name].epilog or ""):
        for text in commands_of(example):
            require_valid(Command(page=name, text=text, is_whole=True))
