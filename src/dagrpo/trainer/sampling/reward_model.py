"""Server of the component reward_model, until the end of a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrpo.chat.formats.tokens import Tokens
from dagrpo.chat.rendering import TemplateRefusal, template_text
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.engine import engine_of
from dagrpo.engine.interface import Classifier
from dagrpo.rewards.components import RewardModel
from dagrpo.rewards.components.reward_model import Config
from dagrpo.rollout.sampling import context_tokens
from dagrpo.trainer.run import TrainingRun

NAME = "reward_model"


class ServedRewardModel:
    """Reward model behind an engine: conversations by its own chat template, in which the policy spells no special token."""

    def __init__(self, folder: Path, classifier: Classifier, longest: int) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._tokens = Tokens(self._tokenizer)
        self._classifier = classifier
        self._longest = longest

    def scores(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
        """Return the classifier's logit of each conversation. Raises UserError for one that the template refuses or that is too long."""
        return self._classifier.scores([self.token_ids(each) for each in conversations])

    def token_ids(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the tokens of a conversation, as the reward model was trained on it: without the opening of another turn."""
        guarded = self._tokens.guarded([dict(message) for message in messages])
        try:
            token_ids = self._tokens.encoded(template_text(self._tokenizer, guarded, (), add_generation_prompt=False))
        except TemplateRefusal as error:
            raise UserError(
                f"the chat template of the reward model refuses a conversation ({error}): use another one"
            ) from None
        if len(token_ids) > self._longest:
            raise UserError(
                f"a conversation has {len(token_ids)} tokens of the reward model, which reads {self._longest} (its own limit, and "
                "runtime.reward_model.max_total_tokens): lower rollout.max_new_tokens, or take a model that reads more"
            )
        return token_ids


@contextmanager
def open_reward_model(run: TrainingRun) -> Iterator[RewardModel | None]:
    """Yield the reward model of a run, served until the end; None if its reward has none."""
    config = run.reward.components.get(NAME)
    if not isinstance(config, Config) or not config.counts:
        yield None
        return
    folder, engine = Path(config.folder), run.runtime.reward_model
    verify(folder)
    opener = engine_of(engine).open_classifier
    assert opener is not None, "params.yaml was checked"
    longest = context_tokens(folder, engine)
    log, policy = run.server_log.with_name(f"{NAME}.server.log"), run.runtime.engine
    reserved = policy.gpus if policy.own_gpus else 0
    with opener(folder, engine, log, dtype=run.rollout.dtype, reserved=reserved) as classifier:
        yield ServedRewardModel(folder, classifier, longest)
