"""Record of an execution's dependencies, its key, and its state folder."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dagrpo.core.errors import UserError
from dagrpo.engine import engine_of
from dagrpo.pipeline.declaration import SEED, Stage
from dagrpo.pipeline.identity import code_digest
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.environment import environment
from dagrpo.utils.files import digest_of, read_json, read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST, FileEntry, fault_of_size, fault_since_read, listed_files, noted_sha256
from dagrpo.utils.provenance import provenances_of

STATES = Path(".state")
PART = "@"  # before the value of a part, in the names of its files on the command line
Fault = Callable[[Path, FileEntry], str | None]
LARGEST_TO_COMPARE = 50_000_000  # bytes of a file in a checkpoint: no tokenizer is larger


def declared(path: Path) -> dict[str, Any]:
    """Read a file that the rules wrote, such as a job's: stage, params and code. Raises UserError if it is missing or damaged."""
    try:
        return read_object(path)
    except UserError:
        raise _damaged(path) from None


def runtime_of(path: Path) -> Runtime:
    """Read section runtime as the rules wrote it. Raises UserError if the file is missing or damaged."""
    try:
        return Runtime.model_validate(declared(path))
    except ValidationError:
        raise _damaged(path) from None


def configuration_of(options: argparse.Namespace) -> dict[str, Any]:
    """Read the whole experiment's configuration that the rules wrote, for its record; {} for a stage started by hand."""
    return declared(options.configuration) if options.configuration else {}


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is missing or damaged: delete it and start Snakemake again, which writes a new one.")


def parts_of(options: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the command line of each part of a job: with its own files, under their names in the declaration.

    A job with one part is that part.
    """
    values = dict.fromkeys(_part_in(pair) for pair in options.output)

    def of_part(pairs: Sequence[str], value: str) -> list[str]:
        return [pair.replace(f"{PART}{value}=", "=", 1) for pair in pairs if _part_in(pair) in ("", value)]

    own = [{"part": v, "input": of_part(options.input, v), "output": of_part(options.output, v)} for v in values]
    return [argparse.Namespace(**vars(options) | each) for each in own]


def _part_in(pair: str) -> str:
    return pair.partition("=")[0].partition(PART)[2]


def inputs_of(options: argparse.Namespace) -> dict[str, list[Path]]:
    """Return the stage's input paths by name."""
    return _grouped(options.input)


def outputs_of(options: argparse.Namespace) -> dict[str, Path]:
    """Return the stage's output paths by name."""
    return {name: paths[0] for name, paths in _grouped(options.output).items()}


def record_of(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """Build the record of an execution: its dependencies, stage, experiment and seed.

    Raises UserError naming an input that is missing or was changed.
    """
    inputs = [path for paths in inputs_of(options).values() for path in paths]
    missing = [str(path) for path in inputs if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]} is missing: run the stage that makes it first.")
    for path, (digest, provenance) in makers_of(options.experiment, inputs).items():  # edited by hand, or damaged
        broken = broken_file(path, digest, largest=LARGEST_TO_COMPARE)
        if broken is not None:
            raise UserError(f"{broken} was changed after it was made: {provenance} has another digest.")
    digests = {str(path): noted_sha256(path) for path in inputs}
    job, runtime = declared(options.job), runtime_of(options.runtime)
    packages = engine_of(runtime.engine).packages if "engine" in stage.selects else ()
    on_gpu, portable = bool(stage.needs(runtime).gpus), runtime.portable_arithmetic
    record = {
        "stage": stage.name,
        "experiment": options.experiment,
        "overrides": declared(options.overrides) if options.overrides else {},
        "seed": options.seed,
        "job": options.job.stem,
        "params": job["params"],
        "code": code_digest(declared(options.job.with_name(f"{job['code']}.json"))),
        "environment": environment(on_gpu=on_gpu, computes=stage.computes, packages=packages, portable=portable),
        "inputs": digests,
    }
    if parts := stage.reads_of(inputs_of(options), outputs_of(options)):
        record["read_in_part"] = {str(path): digest for path, digest in parts.items()}
    is_seeded = stage.seeded(job["params"], inputs_of(options))
    return record | {"key": _key(record, outputs_of(options).values(), is_seeded=is_seeded)}


def makers_of(experiment: str, inputs: Iterable[Path]) -> dict[Path, tuple[str, Path]]:
    """Return the recorded digest of each input, and the provenance.json with it; inputs without a record are left out."""
    inputs, found = set(inputs), dict[Path, tuple[str, Path]]()
    for provenance in provenances_of(experiment):
        try:
            outputs = read_json(provenance)["outputs"]
            found |= {path: (outputs[str(path)], provenance) for path in inputs if str(path) in outputs}
        except (UserError, KeyError, TypeError, AttributeError):  # damaged: its stage is about to run again
            continue
    return found


def is_whole(path: Path, digest: str) -> bool:
    """Return True if an output matches its recorded digest; for a folder, also if its files match its manifest."""
    return broken_file(path, digest) is None


def broken_file(path: Path, digest: str, fault: Fault = fault_since_read, largest: int | None = None) -> Path | None:
    """Return the first file of an output that is missing or has other bytes; None if it is intact.

    `fault` compares a file of a folder; for those above `largest` bytes the size alone is compared. A reader of the checkpoint
    compares its weights with the manifest; the tokenizer, however, may be read alone.
    """
    if not path.is_file() or sha256_of(path) != digest:
        return path
    for name, entry in (listed_files(path) if path.name == MANIFEST else {}).items():
        is_read = largest is None or entry.bytes <= largest
        if (fault if is_read else fault_of_size)(path.parent / name, entry) is not None:
            return path.parent / name
    return None


def _key(record: Mapping[str, Any], outputs: Iterable[Path], *, is_seeded: bool) -> str:
    """Return one digest of everything that determines the outputs: equal wherever the outputs are.

    is_seeded: the outputs of another seed are others.
    """

    def anywhere(path: str) -> str:
        path = in_any_experiment(path, record["experiment"])
        return path if is_seeded else SEED.sub("/runs/*/", path)

    inputs = {anywhere(path): digest for path, digest in _what_decides(record)["inputs"].items()}
    places = {"inputs": inputs, "outputs": sorted(anywhere(str(path)) for path in outputs)}
    return digest_of(_what_decides(record) | places | ({} if is_seeded else {"seed": None}))


def in_any_experiment(path: str, experiment: str) -> str:
    """Replace the experiment's folder in a path by `*`: `data/*/gsm8k/train.parquet`; return any other path as it is."""
    top, _, rest = path.partition("/")
    own, _, inner = rest.partition("/")
    return f"{top}/*/{inner}" if own == experiment else path


def _what_decides(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record that determines the outputs, on machines of one kind."""
    inputs = record["inputs"] | record.get("read_in_part", {})
    return {name: record[name] for name in ("stage", "seed", "params", "code")} | {"inputs": inputs}


def state_folder(stage: Stage, record: Mapping[str, Any]) -> Path:
    """Return the folder of resumable state: not an output, and never shared by unfinished jobs whose results differ.

    Excludes what changes no finished step (`Stage.extends`), such as the number of steps: the run resumes from the last state.
    """
    decides = _what_decides(record) | {"params": without(record["params"], stage.extends)}
    decides |= {"key": record["key"]} if stage.spreads else {}  # two of its parts may differ in their outputs alone
    return STATES / f"{record['experiment']}-{digest_of(decides)[:16]}"


def without(params: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return nested parameters without some dotted keys."""
    result = dict(params)
    for name in list(result):
        inner = [key.partition(".")[2] for key in keys if key.partition(".")[0] == name]
        if "" in inner:
            del result[name]
        elif inner:
            result[name] = without(result[name], inner)
    return result


def _grouped(pairs: Sequence[str]) -> dict[str, list[Path]]:
    grouped: dict[str, list[Path]] = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        grouped.setdefault(name, []).append(Path(path))
    return grouped
