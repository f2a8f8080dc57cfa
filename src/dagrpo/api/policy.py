"""An experiment's policy for notebooks: `dagrpo.load_policy("arithmetic_tiny")` returns a transformers model.

Training and evaluation load theirs by themselves. It does not sample as SGLang does. `arithmetic_tiny@40` names the policy of a kept
step, here and in commands.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dagrpo.api.results import runs_of
from dagrpo.core.errors import UserError, nearest
from dagrpo.pipeline.dag import stage_of
from dagrpo.pipeline.declaration import POLICIES
from dagrpo.pipeline.record import STATES
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tempdirs import temporary_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Which = Literal["trained", "base", "chosen"]
STEP = re.compile(r"step_([1-9][0-9]{0,7})")  # a policy's name


def load_policy(
    source: str | Path, *, which: Which = "trained", dtype: "torch.dtype | None" = None, root: str | Path = "."
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load the model, in eval mode on the CPU, and its tokenizer.

    `source` is an experiment with one seed (`"arithmetic_tiny"`), a run (`"arithmetic_tiny/seed_0"`, or its folder), or the
    folder of a checkpoint in the Hugging Face layout. `which` names a run's policy after training, before it, or the one that
    evaluation.choose has chosen, and `"arithmetic_tiny@40"` that of a kept step; a checkpoint's folder has only one. `dtype`: that of
    the file, if not given. `root` is the project's folder.

    Weights are read from safetensors after a comparison with the folder's manifest, if it has one. Nothing is downloaded, and code
    beside a model is never run. Raises UserError if the run or its policy does not exist, or the folder is not such a checkpoint.
    """
    from dagrpo.checkpoints.convert import HUGGINGFACE
    from dagrpo.checkpoints.manifest import verify
    from dagrpo.checkpoints.modules import build_model
    from dagrpo.checkpoints.source import open_checkpoint
    from dagrpo.checkpoints.tokenizers import load_tokenizer

    with opened_source(str(source), which, Path(root)) as folder:
        opened = open_checkpoint(folder)
        if opened.format != HUGGINGFACE:
            raise UserError(
                f"{folder} is a {opened.format} checkpoint, and transformers loads the Hugging Face layout: "
                f"`dagrpo convert {folder} NEW_FOLDER --to hf` makes one."
            )
        if (folder / MANIFEST).is_file():
            verify(folder)
        types = Counter(spec.dtype for spec in opened.tensors.specs.values())
        weights = {name: opened.tensors.read(name) for name in opened.tensors.specs}
        return build_model(folder, weights, dtype or types.most_common(1)[0][0]), load_tokenizer(folder)


@contextmanager
def opened_source(source: str, which: Which = "trained", root: Path = Path()) -> Iterator[Path]:
    """Yield the folder of the checkpoint that the arguments of `load_policy` select. Raises UserError if it is missing."""
    if which not in POLICIES:
        raise UserError(f"There is no policy `{which}`: ask for {', '.join(POLICIES)}.")
    source, policy = split_policy(source)
    run = _run(source, root)
    if run is None and policy is None:
        yield Path(source)
        return
    if run is None:
        raise UserError(f"{source} is the folder of one checkpoint, and has no policy {policy}: name a run.")
    with opened_policy(run, policy or which, root) as folder:
        yield folder


def split_policy(text: str) -> tuple[str, str | None]:
    """Split `RUN@40` into the run and the name of its policy, step_40; None without one, also of a path with an @.

    Raises UserError for a word that names no policy.
    """
    run, at, word = text.rpartition("@")
    if not at or Path(text).exists():
        return text, None
    policy = re.sub("^(step_)?0*(?=[1-9])", "step_", word)
    if policy not in POLICIES and not STEP.fullmatch(policy):
        raise UserError(
            f"{text}: {word!r} is no policy of {run}: write a kept step, such as {run}@40, or {', '.join(POLICIES)}."
        )
    return run, policy


@contextmanager
def opened_policy(run: Path, policy: str, root: Path = Path()) -> Iterator[Path]:
    """Yield the folder of a run's policy in the Hugging Face layout; a kept step's is restored for as long, checked by digest.

    Raises UserError if it is not there.
    """
    if not (step := STEP.fullmatch(policy)):
        folder = run / POLICIES[policy]
        if not (folder / MANIFEST).is_file():
            experiment, stage = run.parents[1].name, stage_of(f"results/e/runs/seed_0/{folder.name}/{MANIFEST}")
            raise UserError(f"{folder} is not there: run {experiment} to the end of its stage {stage}.")
        yield folder
        return
    from dagrpo.checkpoints.convert import export_kept
    from dagrpo.checkpoints.kept import steps

    number, kept = int(step.group(1)), run / "kept"
    if not (kept / MANIFEST).is_file():
        raise UserError(f"{kept} is not there: run {run.parents[1].name} to the end of its stage train.")
    there = steps(kept)
    if number not in there:
        known = f"but of {', '.join(map(str, there))}" if there else "nor of any other step"
        raise UserError(
            f"{run} has kept no policy of step {number}, {known}: training.keep_policies chooses the steps."
        )
    (root / STATES).mkdir(exist_ok=True)
    with temporary_folder(root / STATES, "policy") as scratch:
        export_kept(kept, run / "initial", number, scratch / policy)
        yield scratch / policy


def _run(source: str | Path, root: Path) -> Path | None:
    """Return the run named by its experiment or by its folder; None for a checkpoint's folder."""
    experiment, _, seed = str(source).partition("/")
    folder, results = Path(source), root / "results"
    if not (results / experiment / "runs").is_dir() or not experiment:
        if not folder.is_dir():
            hint = nearest(experiment, [path.parent.name for path in results.glob("*/runs")])
            raise UserError(f"`{source}` is neither a folder nor an experiment in {results}: {hint}.")
        return folder if folder.parent.name == "runs" else None
    runs = {run.name: run for run in runs_of(experiment, root)}
    if seed not in runs and (seed or len(runs) > 1):
        raise UserError(f"{source} is no single run: name one of {', '.join(f'{experiment}/{each}' for each in runs)}.")
    return runs[seed or next(iter(runs))]
