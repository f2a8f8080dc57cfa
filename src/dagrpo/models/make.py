"""Build the policy's and the teacher's folder from their sections."""

from dataclasses import asdict
from pathlib import Path

from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.checkpoints import store
from dagrpo.checkpoints.compare import summary_lines
from dagrpo.checkpoints.folder import require_format
from dagrpo.checkpoints.manifest import Manifest, read_manifest
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.models.config import TEACHER_SECTION, Model
from dagrpo.utils.files import atomic_folder, write_json
from dagrpo.utils.manifest import MANIFEST, entry_of

ORIGIN = "origin.json"


def make_model(destination: Path, params: Model) -> Manifest:
    """Write the folder that `params` asks for, in the Hugging Face layout, atomically. Each source takes seconds to import."""
    dtype = NAMED_DTYPES[params.dtype]
    match params.source:
        case "fresh":
            from dagrpo.models.fresh import make_fresh

            return make_fresh(destination, params.fresh, dtype, params.max_pixels)
        case "gguf":
            from dagrpo.models.gguf import make_gguf

            assert params.gguf is not None  # the schema asks for it
            return make_gguf(destination, params.gguf, dtype, params.chat_template)
        case "hub":
            from dagrpo.models.hub import make_hub

            assert params.repository is not None
            assert params.revision is not None
            return make_hub(
                destination,
                params.repository,
                params.revision,
                dtype,
                max_pixels=params.max_pixels,
                chat_template=params.chat_template,
            )


def make_teacher(
    destination: Path, params: Teacher, *, source: Path | None, student: Path, max_pixels: int | None = None
) -> list[tuple[str, str]]:
    """Write the folder that `params` asks for, atomically; return lines about it for the log.

    `source`: the checkpoint that params.folder names. `student`: that of the policy, and `max_pixels` the limit of its pictures,
    which also holds for a teacher of the hub. Raises UserError if the vocabularies differ, or the checkpoint is missing.
    """
    match params.source:
        case "folder":
            assert source is not None, "an input of the stage"
            require_format(source, read_manifest(source / MANIFEST), "huggingface")
            require_same_vocabulary(source, student)
            manifest = store.link(source, destination)
        case "hub":
            manifest = _of_the_hub(destination, params, max_pixels)
            require_same_vocabulary(destination, student)
        case "none" | "initial":
            with atomic_folder(destination) as folder:
                write_json(folder / ORIGIN, {"source": params.source})
                write_json(folder / MANIFEST, {"files": {ORIGIN: asdict(entry_of(folder / ORIGIN))}})
            return [("teacher", "none" if params.source == "none" else "the policy that training begins with")]
    return summary_lines(destination, manifest)


def _of_the_hub(destination: Path, params: Teacher, max_pixels: int | None) -> Manifest:
    from dagrpo.models.hub import make_hub

    assert params.repository is not None  # the schema asks for it
    assert params.revision is not None
    dtype = NAMED_DTYPES[params.dtype]
    return make_hub(
        destination, params.repository, params.revision, dtype, section=TEACHER_SECTION, max_pixels=max_pixels
    )


def require_same_vocabulary(teacher: Path, student: Path) -> None:
    """Raise UserError naming both folders if a token differs between them: logprobs of other tokens would be meaningless."""
    theirs, ours = (load_tokenizer(folder).get_vocab() for folder in (teacher, student))
    different = [token for token in sorted(theirs.keys() | ours.keys()) if theirs.get(token) != ours.get(token)]
    if different:
        token = different[0]
        raise UserError(
            f"{teacher} and {student} have not the same vocabulary ({len(theirs):,} and {len(ours):,} tokens; {brief(token)} is "
            f"{_number(theirs.get(token))} in the one and {_number(ours.get(token))} in the other), so that the teacher cannot say "
            "how likely the policy's tokens are: choose a teacher of the policy's own family."
        )


def _number(token_id: int | None) -> str:
    return "missing" if token_id is None else f"number {token_id}"
