"""The shapes of an experiment's models, from their configs alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from dagrpo.algorithms.teacher_config import TEACHER
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.models.published import CONFIGS
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.rewards.components.reward_model import Config as RewardModel
from dagrpo.utils.files import read_object

CONFIG, ORIGIN = "config.json", "origin.json"
MODELS = Path("models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Shapes of an experiment's models; they do not change with a smaller batch."""

    policy: Shape
    teacher: Shape | None = None  # None without one
    reward_model: Shape | None = None  # None without one, or if its folder is not there yet
    pixels: int | None = None  # of a picture, at most; None: none are shown, or it is not known how large they are

    @classmethod
    def of(cls, params: Params, *, online: bool = False) -> Self:
        """Return the models of an experiment. Raises UserError if a config is not on this machine.

        online: whether a config that is not on this machine may be fetched from the hub, a few kilobytes.
        """
        policy = policy_shape(params, online=online)
        pixels = picture_pixels(params) if policy.vision is not None else None
        teacher = _teacher_shape(params, policy, online=online)
        return cls(policy=policy, teacher=teacher, reward_model=_reward_model_shape(params), pixels=pixels)


def policy_shape(params: Params, *, online: bool) -> Shape:
    """Return the policy's shape. Raises UserError if its config is missing."""
    model = params.model
    match model.source:
        case "fresh":
            from dagrpo.models.fresh import config_of

            return Shape.of(config_of(model.fresh))
        case "gguf":
            assert model.gguf is not None, "the schema asks for it"
            return _shape_in_gguf(model.gguf)
        case "hub":
            return _shape_of_hub(model.repository, model.revision, params.experiment.name, model.name, online=online)


def _teacher_shape(params: Params, policy: Shape, *, online: bool) -> Shape | None:
    """Return the teacher's shape; None without a teacher. Raises UserError like `policy_shape`."""
    teacher = params.algorithm.teacher
    match teacher.source:
        case "none":
            return None
        case "initial":
            return policy
        case "folder":
            return _shape_in(Path(str(teacher.folder)))
        case "hub":
            return _shape_of_hub(teacher.repository, teacher.revision, params.experiment.name, TEACHER, online=online)


def _reward_model_shape(params: Params) -> Shape | None:
    """Return the shape of the reward model; None without one, or if its folder is not there yet."""
    config = params.reward.components.get("reward_model")
    if not isinstance(config, RewardModel) or not config.counts or not Path(config.folder, CONFIG).is_file():
        return None
    return _shape_in(Path(config.folder))


def picture_pixels(params: Params) -> int | None:
    """Return the most pixels that the model sees of a picture; None if unknown."""
    model, limit = params.model, params.model.max_pixels
    if limit is not None:
        return limit
    if model.source == "fresh":
        tokens = model.full_picture_tokens
        return None if tokens is None else tokens * (2 * model.fresh.vision.patch_size) ** 2
    if model.source != "hub":
        return None
    for folder in _folders_of(str(model.repository), str(model.revision), params.experiment.name, model.name):
        if (folder / "preprocessor_config.json").is_file():
            limits = read_object(folder / "preprocessor_config.json")
            return int(limits.get("max_pixels") or limits.get("size", {}).get("longest_edge") or 0) or None
    return None


def _folders_of(repository: str, revision: str, experiment: str, name: str) -> Iterator[Path]:
    """Yield folders of this project that hold a model of the hub at that commit, the experiment's own first."""
    for folder in (MODELS / experiment / name, *sorted(MODELS.glob("*/*/"))):
        origin = read_object(folder / ORIGIN) if (folder / ORIGIN).is_file() else {}
        if (origin.get("repository"), origin.get("revision")) == (repository, revision):
            yield folder


def _shape_in(folder: Path) -> Shape:
    from transformers import AutoConfig

    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: name the folder of a checkpoint.")
    try:
        return Shape.of(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / CONFIG} is of no model that transformers has ({error}): choose another model."
        ) from None


def _shape_in_gguf(location: str) -> Shape:
    """Return the shape in a GGUF file's own description, without reading its weights."""
    from dagrpo.models.gguf import gguf_config, gguf_path

    return Shape.of(gguf_config(gguf_path(location)))


def _shape_of_hub(repository: str | None, revision: str | None, experiment: str, name: str, *, online: bool) -> Shape:
    assert repository is not None, "the schema asks for it"
    assert revision is not None, "the schema asks for it"
    for folder in _folders_of(repository, revision, experiment, name):
        return _shape_in(folder)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repository, CONFIG, revision=revision)
    if isinstance(cached, str):
        return _shape_in(Path(cached).parent)
    if repository in CONFIGS:
        from transformers import AutoConfig

        return Shape.of(AutoConfig.for_model(**CONFIGS[repository]))
    if online:
        return _fetched(repository, revision)
    raise UserError(
        f"The {CONFIG} of {repository} at commit {revision[:12]} is not on this machine, neither in {MODELS}/ nor in the hub's "
        "cache: add --online, which fetches that file alone."
    )


def _fetched(repository: str, revision: str) -> Shape:
    from huggingface_hub import hf_hub_download

    from dagrpo.utils.hub import Wanted, readable_hub_errors, require_answer

    request = Wanted(
        repository=repository,
        revision=revision,
        kind="model",
        correct="correct its repository and revision",
        instead="plan it where the model is in the hub's cache",
    )
    require_answer(request)
    with TemporaryDirectory() as folder:
        with readable_hub_errors(request):
            hf_hub_download(repository, CONFIG, revision=revision, local_dir=folder)
        return _shape_in(Path(folder))
