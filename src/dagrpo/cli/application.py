"""The command line beside Snakemake and DVC: `dagrpo --help`."""

import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dagrpo.cli import checkpoints as checkpoint_commands
from dagrpo.cli.compare import command as compare_command
from dagrpo.cli.doctor import command as doctor_command
from dagrpo.cli.half_steps import command as half_steps_command
from dagrpo.cli.new import command as new_command
from dagrpo.cli.plan import command as plan_command
from dagrpo.cli.profiling import command as profile_command
from dagrpo.cli.replay import command as replay_command
from dagrpo.cli.shell_completion import hardware as hardware_presets
from dagrpo.cli.shell_completion import presets as names
from dagrpo.cli.shell_completion import tasks
from dagrpo.cli.show import command as show_command
from dagrpo.cli.status import command as status_command
from dagrpo.cli.warm import command as warm_command
from dagrpo.config.project import require_project_folder_of
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import hide_secrets_in_tracebacks
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.files import write_text

EPILOG = "Begin with `dagrpo doctor` and `dagrpo status`. `dagrpo COMMAND --help` has examples; docs/command_line.md has all commands."


class Commands(TyperGroup):
    """The commands, and what has become of a former one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command. UserError: it is an option of another one now."""
        if cmd_name == "why":
            raise UserError("`dagrpo why FILE` is an option now: `dagrpo status --why FILE`.")
        return super().get_command(ctx, cmd_name)


app = typer.Typer(cls=Commands, no_args_is_help=True, help=__doc__, epilog=EPILOG, pretty_exceptions_enable=False)
tracking = typer.Typer(
    no_args_is_help=True, help="The history of runs in MLflow.", epilog="Example: `dagrpo tracking rebuild`"
)
app.add_typer(tracking, name="tracking")
PARAMS = Path("params.yaml")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from dagrpo.utils.environment import version_of

        typer.echo(f"dagrpo {version_of('dagrpo') or 'that is not installed'}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples: `dagrpo use arithmetic_tiny`; `dagrpo use qwen3_4b dapo_math gspo h200`; `dagrpo use params.yaml gspo`"
)
def use(
    presets: Annotated[
        list[str],
        typer.Argument(help="names of presets, such as qwen3_4b dapo_math gspo h200; or a file", autocompletion=names),
    ],
    force: Annotated[bool, typer.Option("--force", help="replace an edited params.yaml without asking")] = False,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            help="a preset to lay under all others, or none; else that of this machine's GPU",
            autocompletion=hardware_presets,
        ),
    ] = None,
) -> None:
    """Write params.yaml from presets, each laid over the one before, and show what changes."""
    from dagrpo.cli.own_code import require_own_code
    from dagrpo.cli.use import use as write

    require_own_code()
    write(presets, force=force, hardware=hardware)


@app.command(epilog="Example: `dagrpo generate`, after a change of params.yaml by hand, or of a stage")
def generate() -> None:
    """Write the generated files: dvc.yaml, the JSON schema and docs/parameters.md; params.yaml keeps its values."""
    from dagrpo.cli.own_code import require_own_code
    from dagrpo.config import documents
    from dagrpo.config.schema import Params, read_params
    from dagrpo.pipeline.dvc import file

    require_own_code()
    params = read_params(PARAMS) if PARAMS.exists() else Params()
    write_text(PARAMS, documents.params_yaml(params))
    write_text(Path(documents.SCHEMA_PATH), documents.json_schema())
    write_text(Path(documents.TABLE_PATH), documents.table())
    write_text(file.PATH, file.dvc_yaml(params))


@app.command(epilog="Example: `dagrpo lineage results/arithmetic_tiny/runs/seed_0/eval/arithmetic/trained/scores.json`")
def lineage(target: Annotated[str, typer.Argument(metavar="FILE_OR_DIGEST")]) -> None:
    """Walk from a file or a digest up to the raw data, and down to every score that used it."""
    from dagrpo.pipeline.provenance.walk import show

    show(target)


@app.command(epilog="Example: `dagrpo grade gsm8k completions.jsonl`")
def grade(
    task: Annotated[str, typer.Argument(help="whose verifier reads the answers, such as gsm8k", autocompletion=tasks)],
    completions: Annotated[Path, typer.Argument(help="JSONL with the fields completion and ground_truth")],
) -> None:
    """Print each answer as every extractor reads it, and where they disagree."""
    from dagrpo.cli.grade import show

    show(task, completions)


@app.command(epilog="Example: `dagrpo clean --tries`")
def clean(
    tries: Annotated[bool, typer.Option("--tries", help="the folders of every try: of runs with overrides")] = False,
) -> None:
    """Remove override runs (tries), and print their names. Their history in MLflow stays."""
    from dagrpo.cli.clean import remove_tries

    if not tries:
        raise UserError("Say what to remove: `dagrpo clean --tries`; an experiment's own results are yours to delete.")
    for line in remove_tries(Path.cwd()):
        print(line)


@app.command(epilog="Example: `dagrpo ui --port 5001`")
def ui(port: Annotated[int, typer.Option(help="port on 127.0.0.1")] = 5000) -> None:
    """Serve the MLflow UI on loopback and print the address to open."""
    from dagrpo.tracking.ui import serve

    serve(port)


@tracking.command()
def rebuild() -> None:
    """Record results that MLflow lacks, such as after `dvc pull` or while its server was away."""
    from dagrpo.tracking.sync import sync

    print(f"{sync()} executions recorded; `dagrpo ui` shows them")


@app.command(epilog="Example: `dagrpo search data/arithmetic_tiny/arithmetic/passages.parquet --port 8001`")
def search(
    corpus: Annotated[Path, typer.Argument(help="parquet with the columns title and text")],
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
    host: Annotated[str, typer.Option(help="address to listen on; whoever reaches it may search")] = "127.0.0.1",
) -> None:
    """Serve a search over passages, in Search-R1's protocol."""
    from dagrpo.tools.retrieval.server import serve

    serve(corpus, port, host)


checkpoint_commands.register(app)
status_command.register(app)
show_command.register(app)
compare_command.register(app)
new_command.register(app)
doctor_command.register(app)
plan_command.register(app)
profile_command.register(app)
replay_command.register(app)
half_steps_command.register(app)
warm_command.register(app)
require_project_folder_of(app, tracking)


def main() -> None:
    """Run the application; a mistake of the user is one error message and exit code 1."""
    hide_secrets_in_tracebacks()
    try:
        app()
    except Exception as error:  # the outermost level: a bug is raised again, and keeps its traceback
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(sentence, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
