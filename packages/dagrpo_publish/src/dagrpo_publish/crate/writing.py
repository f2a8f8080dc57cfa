"""Writer of a crate: metadata, and files without texts of problems.

Provenance Run Crate 0.5 (https://www.researchobject.org/workflow-run-crate/profiles/0.5/provenance_run_crate), for which Leo et al. 2024,
doi:10.1371/journal.pone.0309210, is to be cited. A file that is not in the crate is named by its digest, as in RFC 6920.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import flat
from dagrpo.config.places import SNAKEFILE
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo.evaluation.choice import read_choice, sentence
from dagrpo.pipeline.accepted import acceptances_of
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.pipeline.identity import LIBRARY
from dagrpo.pipeline.raw_inputs import CARD
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.files import atomic_folder, canonical_json, copy, sha256_of, write_json, write_text
from dagrpo.utils.run_info import SUFFIX
from dagrpo_publish.crate.finished import Finished

METADATA = "ro-crate-metadata.json"
WORKFLOW = "Snakefile"
PARAMS = "params.yaml"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
MEDIA = {
    ".json": "application/json",
    ".parquet": "application/vnd.apache.parquet",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".yaml": "application/yaml",
}
CODE = "#code/"  # before the name of a file of code
TOOL = "#stage/"  # before the name of a stage
ACTION = "#action/"
COMPLETED = "http://schema.org/CompletedActionStatus"
_SAFE = "/:;,=#~+@()"  # stay in a name as they are: RFC 3986 allows them
_TWICE = ("mlflow.", "version.")  # facts of an account that the environment of its record has, too
Entity = dict[str, Any]
Reference = dict[str, str]


def by_digest(digest: str) -> str:
    """Return the name of a content, by its sha256 in hex: ni:///sha-256;... (RFC 6920)."""
    return f"ni:///sha-256;{base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip('=')}"


class Graph:
    """Entities by name. `held` are the paths of the files in the crate, with their digests."""

    def __init__(self, held: Mapping[str, str]) -> None:
        self._held = held
        self._entities: dict[str, Entity] = {}
        self._names: dict[str, list[str]] = {}  # paths of one content

    def add(self, id: str, kind: str | list[str], /, **properties: Any) -> Reference:
        """Put an entity into the graph, or more properties to it; return a reference to it. Empty properties are left out."""
        id = quote(id, safe=_SAFE)
        entity = self._entities.setdefault(id, {"@id": id})
        given = {key: value for key, value in properties.items() if value not in (None, "", [])}
        alone = {key: value[0] for key, value in given.items() if isinstance(value, list) and len(value) == 1}
        entity |= {"@type": kind} | given | alone  # JSON-LD writes the one item of a list alone
        return {"@id": id}

    def file(self, path: str, digest: str, **properties: Any) -> Reference:
        """Add a file: by its path if the crate has this content of it, else by its digest."""
        name = path if self._held.get(path) == digest else by_digest(digest)
        self._names[name] = sorted({path, *self._names.get(name, ())})
        first, *others = self._names[name]
        kind = MEDIA.get(PurePath(path).suffix, "application/octet-stream")
        return self.add(
            name, "File", name=first, alternateName=others, sha256=digest, encodingFormat=kind, **properties
        )

    def files(self) -> list[Reference]:
        """Return a reference to every file."""
        return [{"@id": name} for name, entity in self._entities.items() if "File" in entity["@type"]]

    def as_json(self) -> dict[str, Any]:
        """Return the content of ro-crate-metadata.json."""
        return {"@context": CONTEXT, "@graph": list(self._entities.values())}


def metadata(finished: Finished, held: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return ro-crate-metadata.json of an experiment.

    held: path -> sha256 of every file that is in the crate beside it; sizes: their bytes.
    """
    graph = Graph(held)
    graph.add(
        METADATA,
        "CreativeWork",
        about={"@id": "./"},
        conformsTo=[
            {"@id": f"https://w3id.org/{name}"} for name in ("ro/crate/1.1", "workflowhub/workflow-ro-crate/1.0")
        ],
    )
    graph.add("./", "Dataset")  # the second entity, where people look for it
    for path, digest in held.items():
        graph.file(path, digest, contentSize=str(sizes[path]))
    values = flat(finished.params.model_dump())
    parameters = {key: _value(graph, f"#{key}", key, value) for key, value in values.items()}
    actions = [_action(graph, finished, record, parameters) for record in finished.records]
    run = _run(graph, finished, actions)
    profiles = [graph.add(each, "CreativeWork", name=name, version=number) for each, (name, number) in PROFILES.items()]
    graph.add(
        "./",
        "Dataset",
        name=f"dagrpo: {finished.name}",
        description=f"The experiment {finished.name}: GRPO post-training of a language model, every stage with its parameters, inputs, "
        "outputs, code and environment. A file that is not in this folder is named by its sha256.",
        datePublished=max(_end(finished, each) for each in finished.records),
        license="Not stated; data and base model keep the licences of their sources.",
        conformsTo=profiles,
        mainEntity={"@id": WORKFLOW},
        hasPart=graph.files(),
        mentions=[run, {"@id": "#run-by"}, *actions],
    )
    return graph.as_json()


def _run(graph: Graph, finished: Finished, actions: list[Reference]) -> Reference:
    """Add the workflow, its steps and the action that is the whole run; return a reference to that."""
    steps, controls = [], []
    stages = list(dict.fromkeys(each.stage for each in finished.records))
    for place, stage in enumerate(stages):
        example = {"@id": f"{TOOL}{stage}"}
        steps.append(graph.add(f"#step/{stage}", "HowToStep", position=str(place), workExample=example))
    for record, action in zip(finished.records, actions, strict=True):
        name, step = f"#control/{action['@id'].removeprefix(ACTION)}", {"@id": f"#step/{record.stage}"}
        start = graph.add(name, "ControlAction", instrument=step, object=action, name=f"start of {record.what}")
        controls.append(start)
    site, number = "https://snakemake.github.io", version("snakemake")
    snakemake = {"name": "Snakemake", "url": site}
    language = graph.add("#snakemake", "ComputerLanguage", identifier={"@id": site}, **snakemake, version=number)
    graph.add(
        WORKFLOW,
        ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        name="dagrpo",
        description="From raw data to a score with an error bar, as one DAG.",
        programmingLanguage=language,
        step=steps,
        hasPart=[{"@id": f"{TOOL}{stage}"} for stage in stages],
    )
    made = {path: digest for each in finished.records for path, digest in each.outputs.items()}
    read = {path: digest for each in finished.records for path, digest in each.inputs.items()}
    raw = [graph.file(*file) for each in finished.records for file in finished.raw(each)]
    run = graph.add(
        "#run",
        "CreateAction",
        name=f"run of {finished.name}",
        description=f"All {len(actions)} executions of stages of the experiment {finished.name}."
        + (f" Audited: {finished.audit}." if finished.audit else ""),
        instrument={"@id": WORKFLOW},
        object=_distinct([{"@id": PARAMS}, *raw]),
        result=_distinct(graph.file(path, digest) for path, digest in made.items() if path not in read),
        startTime=min(_start(finished, each) for each in finished.records),
        endTime=max(_end(finished, each) for each in finished.records),
        actionStatus=COMPLETED,
    )
    engine = graph.add("#workflow-engine", "SoftwareApplication", softwareVersion=number, **snakemake)
    graph.add("#run-by", "OrganizeAction", name="run by Snakemake", instrument=engine, object=controls, result=run)
    return run


def _action(
    graph: Graph, finished: Finished, record: ExecutionRecord, parameters: Mapping[str, Reference]
) -> Reference:
    account = finished.accounts.get(record.provenance)
    path = record.provenance.as_posix()
    inputs = [graph.file(*file) for file in (*record.inputs.items(), *finished.raw(record))]
    keys = [
        key.replace(".train_tasks", ".train") for key in flat(dict(record.params))
    ]  # they are a part of that parameter
    read = [parameters[key] for key in keys if key in parameters]
    seed = "" if record.seed is None else f" with the seed {record.seed}"
    hit = ", a cache hit: its outputs were made by an equal execution before"
    hit = hit if account is not None and account.is_taken_over else ""
    choice = "".join(
        f" {sentence(read_choice(Path(each)))}" for each in record.outputs if each.endswith("/choice.json")
    )
    facts, usage = dict(record.environment), list[Reference]()
    if account is not None:
        amounts = {"seconds": account.seconds, "attempt": account.attempt, "memory": account.memory}  # peak in bytes
        usage = [_value(graph, f"#usage/{path}/{name}", name, each, propertyID=name) for name, each in amounts.items()]
        facts |= {name: fact for name, fact in account.facts.items() if not name.startswith(_TWICE)}
        facts |= {"dagrpo": account.facts["version.dagrpo"]} if "version.dagrpo" in account.facts else {}
    return graph.add(
        f"{ACTION}{path}",
        "CreateAction",
        name=record.what,
        description=f"Stage {record.stage} of {record.experiment}{seed}{hit}.{choice}",
        instrument=_tool(graph, finished, record),
        object=_distinct([*inputs, *read]),
        result=_distinct([*(graph.file(*file) for file in record.outputs.items()), {"@id": path}]),
        startTime=_start(finished, record),
        endTime=_end(finished, record),
        actionStatus=COMPLETED,
        environment=[_value(graph, f"#environment/{name}={each}", name, each) for name, each in sorted(facts.items())],
        resourceUsage=usage,
    )


def _tool(graph: Graph, finished: Finished, record: ExecutionRecord) -> Reference:
    files = finished.code.get(record.stage, {})
    code = [
        graph.add(f"{CODE}{name}", "SoftwareApplication", name=name.removeprefix(LIBRARY), softwareVersion=each)
        if name.startswith(LIBRARY)
        else graph.add(f"{CODE}{name}", "SoftwareSourceCode", name=name, version=each, programmingLanguage="Python")
        for name, each in files.items()
    ]
    work = all_stages()[record.stage].work.__doc__ if record.stage in all_stages() else None
    return graph.add(
        f"{TOOL}{record.stage}",
        "SoftwareApplication",
        name=record.stage,
        description=(work or "").partition("\n")[0],
        softwareVersion="; ".join([f"sha256 of its code {record.code}", *map(str, acceptances_of([record.code]))]),
        hasPart=code,
    )


def _value(graph: Graph, id: str, key: str, value: Any, **properties: str) -> Reference:
    text = value if isinstance(value, str) and value else canonical_json(value)
    return graph.add(id, "PropertyValue", name=key, value=text, **properties)


def _start(finished: Finished, record: ExecutionRecord) -> str:
    account = finished.accounts.get(record.provenance)
    return account.started if account else _end(finished, record)


def _end(finished: Finished, record: ExecutionRecord) -> str:
    """Return the end of an execution; without its account the time of its record, which `dvc pull` does not keep."""
    account = finished.accounts.get(record.provenance)
    if account is None:
        end = datetime.fromtimestamp(record.provenance.stat().st_mtime, UTC)
    else:
        end = datetime.fromisoformat(account.started) + timedelta(seconds=account.seconds)
    return end.isoformat(timespec="seconds")


def _distinct(references: Iterable[Reference]) -> list[Reference]:
    return list({each["@id"]: each for each in references}.values())


# Figures and records; tables and pages have problems and completions, checkpoints are large.
HELD = (".json", ".csv", ".md", ".svg")
LARGEST = 16 << 20  # bytes of a file


def write_crate(finished: Finished, folder: Path) -> None:
    """Write the crate of an experiment, whole or not at all. Raises UserError if a file has changed, or holds a secret."""
    sources = {path.as_posix(): path for path in _held(finished)}
    with atomic_folder(folder) as temporary:
        for name, source in sources.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            copy(source, temporary / name)
        copy(Path(SNAKEFILE), temporary / WORKFLOW)
        write_text(temporary / PARAMS, params_yaml(finished.params))
        names = (WORKFLOW, PARAMS, *sources)
        require_no_secret(temporary, names)
        held = {name: sha256_of(temporary / name) for name in names}
        _require_unchanged(finished, held)
        write_json(temporary / METADATA, metadata(finished, held, {n: (temporary / n).stat().st_size for n in names}))
        require_no_secret(temporary, (METADATA,))


def _held(finished: Finished) -> Iterator[Path]:
    for record in finished.records:
        yield record.provenance
        for path in map(Path, record.outputs):
            if path.suffix in HELD and path.name != CARD and path.stat().st_size <= LARGEST:
                yield path
    written = {sha256_of(each.provenance) for each in finished.records}
    for account in sorted(Path("logs", finished.name).rglob(f"*{SUFFIX}")):
        if any(digest in account.read_text() for digest in written):
            yield account


def _require_unchanged(finished: Finished, held: dict[str, str]) -> None:
    for record in finished.records:
        for path, digest in record.outputs.items():
            if Path(path).suffix in HELD and (held.get(path) or sha256_of(Path(path))) != digest:
                raise UserError(
                    f"{path} was changed after {record.what} made it: `dagrpo verify {finished.name}` lists what has changed; "
                    "restore it first."
                )


def require_no_secret(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError if a text file holds a password in an address, or the value of a variable that looks like a secret."""
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        if redacted(text) != text:
            raise UserError(
                f"{name} holds a password, a key or a token, of the environment or in an address, and nothing is written: unset the "
                "variable if it is no secret, or remove the secret from params.yaml and run again."
            )
