"""Commands `dagrpo serve` and `dagrpo search`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dagrpo.cli.shared import Run, Seed, complete_evaluated


def serve(
    run: Run,
    policy: Annotated[
        Literal["base", "trained", "both"],
        typer.Option(
            help="policy to serve; both: side by side. RUN@40 has that of a kept step in place of the trained one"
        ),
    ] = "both",
    task: Annotated[
        str | None,
        typer.Option(
            help="evaluated task whose prompt and tools are used; by default the first",
            autocompletion=complete_evaluated,
        ),
    ] = None,
    seed: Seed = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of 127.0.0.1 to listen on; 0: any free one")] = 0,
) -> None:
    """Serve a run's policies on this machine: a page to talk to them, and an OpenAI endpoint for each, until Ctrl-C."""
    from dagrpo.api.policy import split_policy
    from dagrpo.cli.show.command import run_folder
    from dagrpo.utils.console import say
    from dagrpo_agents.serve.policy import open_policies
    from dagrpo_agents.serve.site import run_site

    run, named = split_policy(run)
    own = [named or "trained"]
    names = list(dict.fromkeys({"base": ["base"], "trained": own, "both": ["base", *own]}[policy]))
    say(f"Starting a server for each policy ({', '.join(names)}): up to some minutes.")
    with open_policies(run_folder(run, seed), names, task) as policies:
        run_site(policies, port)


def search(
    corpus: Annotated[Path, typer.Argument(help="parquet with the columns title and text")],
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
    host: Annotated[
        str, typer.Option(help="address to listen on; every client that can reach it may search")
    ] = "127.0.0.1",
) -> None:
    """Serve a search over passages, in Search-R1's protocol."""
    from dagrpo_agents.search_server import serve

    serve(corpus, port, host)
