"""What a user edits and other people hand over ends in one sentence, whatever lies in the place of the file."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from tests.rollout import conversations
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typer.testing import CliRunner

from dagrpo.checkpoints.folder import require_chat_template, set_config_dtype
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.cli.application import app
from dagrpo.core.escape import visible
from dagrpo.engine import sglang
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.pipeline import failure_report
from dagrpo.pipeline.dvc import recording
from dagrpo.rollout.sampling import context_tokens
from dagrpo.tools.retrieval.index import Index
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.files import sha256_of, write_json, write_text
from dagrpo.utils.manifest import entry_of
from dagrpo.utils.tables import write_parquet

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
LONGEST = 500  # characters
MANY_ZEROS = 200_000_000
DEEP = 100_000  # levels
Way = Callable[[Path, bytes], object]
RUN = "results/tiny/runs/seed_0"
MODEL = "models/tiny/qwen"
DOWNLOAD = "download"  # a model without a manifest
CARD, PROVENANCE = (f"data/tiny/gsm8k/{name}.json" for name in ("card", "provenance"))
FAILURE = str(failure_report.path_of("train", Path("train.log")))
SHAPE = Fresh(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=16,
    max_position_embeddings=64,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each file that commands read."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "Snakefile").touch()
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, folder / name)
    shutil.copytree(ROOT / "presets", folder / "presets")
    make_fresh(folder / MODEL, SHAPE, torch.float32)
    shutil.copytree(folder / MODEL, folder / DOWNLOAD)
    for name in ("manifest.json", "chat_template.jinja"):
        (folder / DOWNLOAD / name).unlink()
    _make_run(folder / RUN)
    write_json(folder / CARD, {"source": "a/b", "revision": None, "raw": {"x.jsonl": "9" * 64}})
    record: dict[str, Any] = {
        "stage": "prepare",
        "experiment": "tiny",
        "seed": None,
        "key": "k",
        "params": {},
        "code": "c",
        "job": "j",
    }
    made = {"environment": {}, "inputs": {}, "outputs": {CARD: sha256_of(folder / CARD)}}
    write_json(folder / PROVENANCE, record | made)
    write_json(folder / FAILURE, {})
    write_text(folder / "dvc.lock", "schema: '2.0'\nstages: {}\n")
    write_parquet(folder / "passages.parquet", conversations.table([conversations.alone(0)]).select(["task"]))
    write_text(folder / "answers.jsonl", '{"completion": "#### 72", "ground_truth": "72"}\n')
    return folder


def _make_run(run: Path) -> None:
    rows = [conversations.with_tool(0), conversations.alone(1)]
    write_parquet(run / "rollouts/step_00001.parquet", conversations.training_table(rows, [1.0, 0.0]))
    entry = asdict(entry_of(run / "rollouts/step_00001.parquet"))
    write_json(run / "rollouts/manifest.json", {"files": {"step_00001.parquet": entry}})
    write_text(run / "exported/tokenizer.json", Tokenizer(WordLevel({f"w{n}": n for n in range(20)}, "w0")).to_str())


@pytest.fixture(autouse=True)
def _in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def _command(*arguments: str) -> Callable[[], object]:
    def call() -> str:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


# What reads files, by a name; and which files of the project it reads.
READERS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "use": (_command("use", "arithmetic_tiny", "--force"), ("params.yaml", "presets/experiments/arithmetic_tiny.yaml")),
    "grade": (_command("grade", "gsm8k", "answers.jsonl"), ("answers.jsonl",)),
    "search": (lambda: Index.read(Path("passages.parquet")), ("passages.parquet",)),
    "show": (
        _command("show", "tiny", "--tokens"),
        (f"{RUN}/rollouts/step_00001.parquet", f"{RUN}/exported/tokenizer.json"),
    ),
    "inspect": (_command("inspect", MODEL), (f"{MODEL}/manifest.json", f"{MODEL}/model.safetensors")),
    "verify": (_command("verify", MODEL), (f"{MODEL}/config.json", f"{MODEL}/model.safetensors")),
    "verify an experiment": (_command("verify", "tiny"), (PROVENANCE, CARD)),
    "status": (_command("status"), (PROVENANCE, CARD, FAILURE)),
    "convert": (
        _command("convert", MODEL, "converted", "--to", "dcp"),
        (f"{MODEL}/manifest.json", f"{MODEL}/config.json", f"{MODEL}/model.safetensors", f"{MODEL}/tokenizer.json"),
    ),
    "convert a download": (
        _command("convert", DOWNLOAD, "converted", "--to", "dcp"),
        (f"{DOWNLOAD}/config.json", f"{DOWNLOAD}/model.safetensors"),
    ),
    "DVC's lock": (recording.require_readable_lock, ("dvc.lock",)),
    "context": (lambda: context_tokens(Path(MODEL), sglang.Config()), (f"{MODEL}/config.json",)),
    "chat template": (lambda: require_chat_template(Path(DOWNLOAD)), (f"{DOWNLOAD}/tokenizer_config.json",)),
    "type of weights": (lambda: set_config_dtype(Path(DOWNLOAD), torch.float32), (f"{DOWNLOAD}/config.json",)),
    "tokenizer of the gates": (
        lambda: load_tokenizer(Path(DOWNLOAD)),
        (f"{DOWNLOAD}/config.json", f"{DOWNLOAD}/tokenizer_config.json", f"{DOWNLOAD}/tokenizer.json"),
    ),
}
OF_OTHERS = {"passages.parquet", "answers.jsonl"}


def _zeros(path: Path, whole: bytes) -> None:
    path.touch()
    os.truncate(path, MANY_ZEROS)  # takes no room


def _forbidden(path: Path, whole: bytes) -> None:
    path.write_bytes(whole)
    path.chmod(0)


def _holding(content: bytes) -> Way:
    return lambda path, whole: path.write_bytes(content)


# Everything that a file can be instead of what was written.
WAYS: dict[str, Way] = {
    "empty": _holding(b""),
    "truncated": lambda path, whole: path.write_bytes(whole[: len(whole) // 2]),
    "not UTF-8": lambda path, whole: path.write_bytes(b"\xff\xfe" + whole),
    "NUL inside": lambda path, whole: path.write_bytes(whole[: len(whole) // 2] + b"\0\0\0" + whole[len(whole) // 2 :]),
    "null": _holding(b"null"),
    "a number": _holding(b"7\n"),
    "a list": _holding(b'[1, "a"]'),
    "an empty object": _holding(b"{}\n"),
    "an object of nulls": _holding(
        b'{"files": null, "stage": null, "outputs": null, "inputs": null, "raw": null, "key": null}\n'
    ),
    "deep lists": _holding(b"[" * DEEP + b"]" * DEEP),
    "deep objects": _holding(b'{"a": ' * DEEP + b"1" + b"}" * DEEP),
    "a long number": _holding(b'{"a": ' + b"9" * 5000 + b"}"),
    "zeros": _zeros,
    "a folder": lambda path, whole: path.mkdir(),
    "a broken link": lambda path, whole: path.symlink_to("nowhere"),
    "a disk that fails": lambda path, whole: path.symlink_to("/proc/self/mem"),  # every read fails, also for root
    "forbidden": _forbidden,
}
LIKELY_WAYS = ("empty", "truncated", "a folder", "forbidden")  # as a kill, a full disk or a user leaves a file


@contextmanager
def damaged(path: Path, way: str) -> Iterator[None]:
    """Damage a file; afterwards it is what it was."""
    whole = path.read_bytes()
    path.unlink()
    WAYS[way](path, whole)
    try:
        yield
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(whole)


def _ways(file: str) -> Iterable[str]:
    """Return the ways in which a file may be damaged: every way that there is for what others may have written."""
    is_foreign = file in OF_OTHERS or file.startswith((f"{MODEL}/", f"{DOWNLOAD}/"))
    return WAYS if is_foreign else LIKELY_WAYS


CASES = [(name, file, way) for name, (_, files) in READERS.items() for file in files for way in _ways(file)]


@pytest.mark.parametrize(("reader", "file", "way"), everyday(CASES[::3], CASES))
def test_damage_is_one_sentence(reader: str, file: str, way: str, project: Path) -> None:
    with damaged(Path(file).absolute(), way):
        try:
            READERS[reader][0]()
        except Exception as error:
            told = sentence_of(error)
            if told is None:
                raise
            assert 0 < len(told) <= LONGEST
            assert told == visible(told)
