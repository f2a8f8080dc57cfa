"""The folder of a teacher: linked, or empty; never with another vocabulary than the policy's."""

from pathlib import Path

import pytest
import torch
from tests.checkpoints.conftest import SHAPE

from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.core.errors import UserError
from dagrpo.models.fresh import make_fresh
from dagrpo.models.make import make_teacher
from dagrpo.utils.files import read_json
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "student"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


@pytest.mark.parametrize("source", ["none", "initial"])
def test_without_a_teacher_to_fetch_the_folder_says_why_it_is_empty(source: str, student: Path, tmp_path: Path) -> None:
    make_teacher(tmp_path / "teacher", Teacher.model_validate({"source": source}), source=None, student=student)
    assert read_json(tmp_path / "teacher" / "origin.json") == {"source": source}
    (entry,) = listed_files(tmp_path / "teacher" / MANIFEST).values()
    assert fault_of(tmp_path / "teacher" / "origin.json", entry) is None


def _made(folder: Path, student: Path, destination: Path) -> None:
    params = Teacher.model_validate({"source": "folder", "folder": str(folder)})
    make_teacher(destination, params, source=folder, student=student)


def test_a_folder_is_the_same_checkpoint_under_another_name(student: Path, tmp_path: Path) -> None:
    make_fresh(tmp_path / "other", SHAPE.model_copy(update={"seed": 5}), torch.float32)
    _made(tmp_path / "other", student, tmp_path / "teacher")
    assert (tmp_path / "teacher" / MANIFEST).read_bytes() == (tmp_path / "other" / MANIFEST).read_bytes()


def test_a_teacher_of_another_vocabulary_or_format_is_refused_in_a_sentence(student: Path, tmp_path: Path) -> None:
    make_fresh(tmp_path / "other", SHAPE.model_copy(update={"calls": {"add": "terms"}}), torch.float32)
    with pytest.raises(UserError, match=r"have not the same vocabulary .* choose a teacher of the") as refused:
        _made(tmp_path / "other", student, tmp_path / "teacher")
    assert str(student) in str(refused.value)
    assert str(tmp_path / "other") in str(refused.value)
    assert len(str(refused.value)) < 500
    convert(student, tmp_path / "dcp", Checkpoint())
    with pytest.raises(UserError, match="is a dcp checkpoint where a huggingface one is needed"):
        _made(tmp_path / "dcp", student, tmp_path / "teacher")
    assert not (tmp_path / "teacher").exists()
