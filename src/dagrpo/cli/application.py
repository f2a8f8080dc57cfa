"""Commands for use beside Snakemake and DVC."""

import platform
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dagrpo.cli.accept import accept
from dagrpo.cli.checkpoints import convert, diff, inspect
from dagrpo.cli.clean import clean
from dagrpo.cli.grade import grade
from dagrpo.cli.init import init
from dagrpo.cli.new.command import new
from dagrpo.cli.shared import PARAMS
from dagrpo.cli.show.command import show
from dagrpo.cli.status.command import status
from dagrpo.cli.use import use
from dagrpo.cli.warm import warm
from dagrpo.config.places import add_own_code, is_clone
from dagrpo.config.project import require_own_code, require_project_folder_of
from dagrpo.core.errors import UserError
from dagrpo.core.plugins import entry_points
from dagrpo.core.redaction import hide_secrets_in_tracebacks
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.files import write_text

EPILOG = "Begin with `dagrpo doctor` and `dagrpo status`. `dagrpo COMMAND --help` has examples; docs/command_line.md has all commands."


class Commands(TyperGroup):
    """The commands, with what installs those of packages that are not there."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command. Raises UserError if its package is not installed."""
        if cmd_name in PACKAGED and cmd_name not in self.commands:
            raise UserError(
                f"`dagrpo {cmd_name}` is of a package that is not installed: `pip install '{PACKAGED[cmd_name]}'` installs it, in a clone "
                "`make setup`."
            )
        return super().get_command(ctx, cmd_name)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from dagrpo.utils.environment import version_of

        typer.echo(f"dagrpo {version_of('dagrpo') or 'that is not installed'}, Python {platform.python_version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def generate() -> None:
    """Write dvc.yaml, links to code, the JSON schema and the generated pages and tables of docs; keep the values in params.yaml."""
    from dagrpo.config import documents
    from dagrpo.config.schema import Params, read_params
    from dagrpo.pipeline.dvc import file

    require_own_code()
    params = read_params(PARAMS) if PARAMS.exists() else Params()
    write_text(PARAMS, documents.params_yaml(params))
    write_text(Path(documents.SCHEMA_PATH), documents.json_schema())
    if is_clone():
        runpy.run_path("docs/site/pages.py", run_name="__main__")
    file.generate(params)


EXAMPLES = {  # at the end of each command's help
    "init": "Example: `dagrpo init my_study && cd my_study && snakemake --cores all target`",
    "use": "Examples: `dagrpo use arithmetic_tiny`; `dagrpo use qwen3_4b dapo_math gspo h200`; `dagrpo use params.yaml gspo`",
    "generate": "Example: `dagrpo generate`, after a change of params.yaml by hand, or of a stage",
    "lineage": "Example: `dagrpo lineage results/arithmetic_tiny/runs/seed_0/eval/arithmetic/trained/scores.json`",
    "grade": "Example: `dagrpo grade gsm8k completions.jsonl`",
    "clean": "Example: `dagrpo clean --override-runs`",
    "ui": "Example: `dagrpo ui --port 5001`",
    "search": "Example: `dagrpo search data/arithmetic_tiny/arithmetic/passages.parquet --port 8001`",
    "convert": "Example: `dagrpo convert models/arithmetic_tiny/tiny_qwen2 tiny_dcp --to dcp`",
    "inspect": "Example: `dagrpo inspect results/arithmetic_tiny/runs/seed_0/exported`",
    "diff": "Example: `dagrpo diff models/arithmetic_tiny/tiny_qwen2 results/arithmetic_tiny/runs/seed_0/exported`",
    "verify": "Example: `dagrpo verify arithmetic_tiny`",
    "accept": "Example: `dagrpo accept train --because 'only a log line changed'`",
    "status": "Examples: `dagrpo status`; `dagrpo status arithmetic_tiny`; "
    "`dagrpo status --why results/arithmetic_tiny/runs/seed_0/policy`",
    "show": "Examples: `dagrpo show arithmetic_tiny --step 10 --best 3 --worst 3`; "
    '`dagrpo show arithmetic_tiny --prompt "48+44" --tokens`',
    "compare": "Examples: `dagrpo compare arithmetic_tiny arithmetic_tiny-gspo`; `dagrpo compare A B C --html compared.html`",
    "sweep": "Examples: `dagrpo sweep learning_rate`; `dagrpo sweep learning_rate --html sweep.html`",
    "power": "Examples: `dagrpo power arithmetic_tiny`; `dagrpo power A B --points 1`",
    "crate": "Example: `dagrpo crate arithmetic_tiny`",
    "publish": "Examples: `dagrpo publish arithmetic_tiny --to folder:my_policy`; "
    "`dagrpo publish arithmetic_tiny --to hub:my_lab/my_policy`",
    "reproduce": "Examples: `dagrpo reproduce arithmetic_tiny.crate -n`; `dagrpo reproduce arithmetic_tiny.crate`",
    "new": "Examples: `dagrpo new loss tilted`; `dagrpo new task capitals --package ../my_lab`",
    "doctor": "Examples: `dagrpo doctor`; `dagrpo doctor --online` also asks the hub",
    "plan": "Examples: `dagrpo plan`; `dagrpo plan arithmetic_tiny`; `dagrpo plan qwen3_4b dapo_math gspo h200 --gpu H200 --online`; "
    "`dagrpo plan params.yaml lora --memory 24`",
    "profile": "Examples: `dagrpo profile`; `dagrpo profile arithmetic_tiny --steps 3 --to steps.json.gz`",
    "replay": "Example: `dagrpo replay arithmetic_tiny --steps 3,17`",
    "audit": "Examples: `dagrpo audit arithmetic_tiny`; `dagrpo audit arithmetic_tiny --steps 3,17 --draw 2f61`",
    "serve": "Examples: `dagrpo serve arithmetic_tiny`; `dagrpo serve arithmetic_tiny --policy trained --port 8003`",
    "train": "Example: `dagrpo train --rollouts-only --to half_a_step`, then `dagrpo train --from-rollouts half_a_step --to the_other`",
    "warm": "Example: `dagrpo warm`, once the experiment's model exists",
}

RARE = "Seldom by hand"
PANELS: dict[str, tuple[Callable[..., None] | str, ...]] = {  # of `dagrpo --help`; a name: of PACKAGED
    "Begin": (init, "doctor", use, "plan", new),
    "Look": (status, show, "ui", "serve", "profile", "lineage"),
    "Compare": ("compare", "sweep", "power"),
    "Check and pass on": ("verify", accept, "replay", "audit", "crate", "reproduce", "publish"),
    "Checkpoints and answers": (convert, inspect, diff, grade),
    RARE: (generate, clean, "search", "train", warm, "tracking"),
}
# Commands of packages that are found by their entry points, and what pip installs for each.
PACKAGED = {
    "audit": "dagrpo[replay]",
    "compare": "dagrpo[compare]",
    "crate": "dagrpo[publish]",
    "doctor": "dagrpo[doctor]",
    "lineage": "dagrpo[mlflow]",
    "plan": "dagrpo[plan]",
    "power": "dagrpo[compare]",
    "profile": "dagrpo[replay]",
    "publish": "dagrpo[publish]",
    "replay": "dagrpo[replay]",
    "reproduce": "dagrpo[publish]",
    "search": "dagrpo[agents]",
    "serve": "dagrpo[agents]",
    "sweep": "dagrpo[compare]",
    "tracking": "dagrpo[mlflow]",
    "train": "dagrpo[replay]",
    "ui": "dagrpo[mlflow]",
    "verify": "dagrpo[replay]",
}
app = typer.Typer(cls=Commands, no_args_is_help=True, help=__doc__, epilog=EPILOG, pretty_exceptions_enable=False)
app.callback()(_options)
packaged: dict[str, Callable[..., None] | typer.Typer] = {
    point.name: point.load() for point in entry_points("dagrpo.commands") if point.name in PACKAGED
}
groups = [each for each in packaged.values() if isinstance(each, typer.Typer)]
for panel, commands in PANELS.items():
    for command in commands:
        found = packaged.get(command) if isinstance(command, str) else command
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=str(command), rich_help_panel=panel)
        elif found is not None:
            app.command(epilog=EXAMPLES[found.__name__], rich_help_panel=panel)(found)
require_project_folder_of(app, *groups)


def main() -> None:
    """Run the application; a user's mistake is printed as one error message, with exit code 1."""
    hide_secrets_in_tracebacks()
    add_own_code()
    try:
        app()
    except Exception as error:  # the outermost level: a bug is raised again, and keeps its traceback
        message = sentence_of(error)
        if message is None:
            raise
        print(message, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
