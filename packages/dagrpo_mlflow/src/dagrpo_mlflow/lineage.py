"""Lineage of a file: up to raw data and down to scores.

Read from the provenance files in the tree and from the history of runs in MLflow. Files are joined by content, so a
file that was restored from a cache, moved, or overwritten since is found as well.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape
from rich.tree import Tree

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.pipeline.raw_inputs import CARD, is_own
from dagrpo.utils.console import VisibleConsole
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import Execution, File, files_of, in_order, read_execution
from dagrpo_mlflow.store import is_initialised, open_client, require_answer, tracking_uri, trouble_of_store

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
CANDIDATES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A file, and the files on its far side: its sources when walking up, what was made from it when walking down."""

    file: File
    made_by: Execution | None  # None: raw data, or content from before any record
    state: str  # "", "missing", "overwritten" or "changed"
    repeated: bool  # shown with its branches elsewhere in the same tree
    branches: tuple["Branch", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The position of one file between raw data and scores."""

    up: Branch
    down: Branch
    same_content: tuple[str, ...]  # other paths that hold, or held, the same bytes


class Graph:
    """A graph of files (path and content) and executions."""

    def __init__(self, executions: Sequence[Execution], root: Path, raw: frozenset[File] = frozenset()) -> None:
        """Take the executions, earlier ones first where two made a file, and the raw files that data cards name."""
        self._root, self._raw = root, raw
        self._made_by: dict[File, Execution] = {}
        self._used_by: dict[File, list[Execution]] = defaultdict(list)
        self._files: dict[str, list[File]] = defaultdict(list)  # by digest
        self._contents: dict[str, list[str]] = defaultdict(list)  # digests by path
        self._digest_now: dict[str, str | None] = {}
        for execution in executions:
            for file in execution.outputs:
                self._made_by.setdefault(file, execution)
            for file in execution.inputs:
                self._used_by[file].append(execution)
            for file in (*execution.outputs, *execution.inputs):
                if file not in self._files[file.digest]:
                    self._files[file.digest].append(file)
                    self._contents[file.path].append(file.digest)

    def maker(self, file: File) -> Execution | None:
        """Return the execution that wrote the file, or else one that wrote the same content at another path."""
        return next((self._made_by[place] for place in (file, *self.places(file)) if place in self._made_by), None)

    def places(self, file: File) -> Sequence[File]:
        """Return the files with that content."""
        return self._files.get(file.digest, ())

    def sources(self, file: File) -> Sequence[File]:
        """Return what the maker of a file has read."""
        maker = self.maker(file)
        return maker.inputs if maker else ()

    def products(self, file: File) -> Sequence[File]:
        """Return what was made from the file, or else from the same content at another path."""
        places = (file,) if file in self._used_by else self.places(file)
        users = [execution for place in places for execution in self._used_by.get(place, ())]
        return list(dict.fromkeys(output for user in users for output in user.outputs))

    def tree(self, file: File, following: Callable[[File], Sequence[File]]) -> Branch:
        """Return the tree of the files that follow a file, each with its branches once."""
        seen: set[File] = set()

        def grow(file: File) -> Branch:
            repeated = file in seen
            seen.add(file)
            return Branch(
                file=file,
                made_by=self.maker(file),
                state="" if file in self._raw else self.state(file),
                repeated=repeated,
                branches=() if repeated else tuple(grow(other) for other in following(file)),
            )

        return grow(file)

    def state(self, file: File) -> str:
        """Return how the tree differs from the record: `missing`, `overwritten` by another execution, or `changed` by hand."""
        now = self._now(file.path)
        if now == file.digest:
            return ""
        if now is None:
            return "missing"
        return "overwritten" if now in self._contents[file.path] else "changed"

    def find(self, target: str) -> File:
        """Return the file of a path, a checkpoint folder or a digest (8 digits or more).

        UserError when nothing on record matches, or a digest matches several contents.
        """
        given = Path(target, MANIFEST) if Path(target).is_dir() else Path(target)
        absolute, root = given.absolute(), self._root.absolute()
        path = str(absolute.relative_to(root) if absolute.is_relative_to(root) else given)
        now = self._now(path)
        if now is not None or path in self._contents:
            return self._at(path, now)
        match = _DIGEST.fullmatch(target.lower())
        if match is None:
            raise UserError(f"{target} is neither a file nor a digest of at least 8 hex digits: name one of these.")
        return self._with_digest(match[1])

    def _at(self, path: str, now: str | None) -> File:
        if now is not None and File(path, now) in self._files.get(now, ()):
            return File(path, now)
        if now is not None and self._files.get(now):
            return self._files[now][0]
        if path in self._contents:
            return File(path, self._contents[path][0])
        raise UserError(f"{path} is on no record: no stage has read or written this content, or this path.")

    def _with_digest(self, prefix: str) -> File:
        matches = [digest for digest in self._files if digest.startswith(prefix)]
        if not matches:
            raise UserError(f"No stage has read or written content with the digest {prefix}: check its digits.")
        if len(matches) > 1:
            names = ", ".join(f"{digest[:16]} ({self._files[digest][0].path})" for digest in matches[:CANDIDATES_SHOWN])
            raise UserError(f"The digest {prefix} fits {len(matches)} files: give more digits of {names}.")
        places = self._files[matches[0]]
        return next((place for place in places if not self.state(place)), places[0])

    def _now(self, path: str) -> str | None:
        if path not in self._digest_now:
            file = self._root / path
            self._digest_now[path] = sha256_of(file) if file.is_file() else None
        return self._digest_now[path]


FOLDERS = ("data", "models", "results")
DIGITS_SHOWN = 12
PIPE_WIDTH = 200
LONGEST_TEXT = 1000  # characters of a path


def lineage(target: str, root: Path | None = None, history: bool = True) -> Lineage:
    """Return the lineage of a path, a checkpoint folder or a digest. UserError when it is not on record, or ambiguous.

    `history` also asks MLflow, which takes seconds.
    """
    root = root or Path.cwd()
    current, raw = _from_tree(root)
    past = _past_executions(root) if history else []
    graph = Graph(list(dict.fromkeys([*current, *past])), root, raw)
    file = graph.find(target)
    others = tuple(place.path for place in graph.places(file) if place != file)
    return Lineage(up=graph.tree(file, graph.sources), down=graph.tree(file, graph.products), same_content=others)


def show(target: str) -> None:
    """Print both trees. Raises like `lineage`."""
    console = VisibleConsole(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    with VisibleConsole(stderr=True).status("reading provenance files and the history of runs"):
        result = lineage(target)
    for title, branch in (("made from", result.up), ("used for", result.down)):
        tree = Tree(f"[bold]{title}[/bold]")
        _attach(tree, branch)
        console.print(tree)
    if result.same_content:
        console.print(f"same content: {_text(', '.join(result.same_content))}")


def _from_tree(root: Path) -> tuple[list[Execution], frozenset[File]]:
    """Return the executions behind the files in the tree, and the raw files that data cards name."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*provenance.json"))]
    executions: list[Execution] = []
    raw: set[File] = set()
    for execution in in_order(read_execution(path) for path in paths):
        inputs = {file.digest for file in execution.inputs if not is_own(file.path, execution.experiment)}
        named = [file for file in _raw_files(execution, root) if file.digest not in inputs]
        raw |= set(named)
        executions.append(replace(execution, inputs=(*execution.inputs, *named)))
    return executions, frozenset(raw)


def _raw_files(execution: Execution, root: Path) -> list[File]:
    found = list[File]()
    for path, digest in ((root / file.path, file.digest) for file in execution.outputs):
        if path.name == CARD and path.is_file() and sha256_of(path) == digest:
            card = read_object(path)
            at = f"@{card['revision'][:DIGITS_SHOWN]}" if card.get("revision") else ""
            found += (File(f"{card.get('source')}{at}/{name}", each) for name, each in card["raw"].items())
    return found


def _attach(tree: Tree, branch: Branch) -> None:
    node = tree.add(_label(branch))
    for inner in branch.branches:
        _attach(node, inner)


def _text(text: str) -> str:
    """Return a record's text, escaped for a terminal and without markup."""
    return escape(one_line(text, LONGEST_TEXT))


def _label(branch: Branch) -> str:
    parts = [_text(branch.file.path), f"[dim]{_text(branch.file.digest[:DIGITS_SHOWN])}[/dim]"]
    made_by = branch.made_by
    if made_by is None:
        parts.append("[cyan]raw[/cyan]")
    else:
        seed = "" if made_by.seed is None else f", seed {made_by.seed}"
        parts.append(f"[green]{_text(made_by.stage)}[/green] [dim]({_text(made_by.experiment)}{seed})[/dim]")
    if branch.state:
        parts.append(f"[bold red]{branch.state}[/bold red]")
    if branch.repeated:
        parts.append("[dim](see above)[/dim]")
    return "  ".join(parts)


def _past_executions(root: Path) -> list[Execution]:
    """Return every finished execution on record, newest first. Takes seconds: it imports MLflow.

    UserError when the record cannot be read.
    """
    uri = tracking_uri(root)
    if not is_initialised(uri):
        return []
    require_answer(uri)
    try:
        client = open_client(uri)
    except Exception as error:  # the border to a server or a database, which may answer anything
        raise UserError(f"the runs on record cannot be read: {trouble_of_store(error, uri)}.") from error
    from dagrpo_mlflow.runs import all_runs  # imports MLflow

    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    tags_of_runs = (run.data.tags for run in all_runs(client, experiments, "tags.role = 'stage'"))
    return [_execution(tags) for tags in tags_of_runs if _digests(tags, "output.")]


def _execution(tags: Mapping[str, str]) -> Execution:
    return Execution(
        stage=tags["stage"],
        experiment=tags["experiment"],
        seed=int(tags["seed"]) if tags["seed"].isdecimal() else None,
        key=tags["key"],
        inputs=files_of(_digests(tags, "input.")),
        outputs=files_of(_digests(tags, "output.")),
    )


def _digests(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in tags.items() if name.startswith(prefix)}
