"""Combinations of parameters that cannot work are refused in a sentence that says what to do."""

from typing import Any

import pytest
import yaml
from tests.config.refusal import refused

from dagrpo.config.overlay import merged, with_keys
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError

PARTIAL: dict[str, Any] = {
    "rollout": {"deterministic": False},
    "training": {"dynamic_sampling": {"max_aborts": 1, "oversampling": 2.0, "partial_rollouts": True}},
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("experiment.seeds: [1, 1]", "contains duplicates"),
        ("experiment.tasks: [gsm8k]", "set it to ['arithmetic']"),
        ("model.source: gguf", "model.gguf is null: give the path"),
        ("model: {source: hub, repository: a/b}", "give both"),
        ("model: {source: hub, repository: a/b, revision: main}", "40 hex digits"),
        ("model.gguf: x.gguf", "does not read it: set it to null"),
        ("model.fresh.hidden_size: 130", "not a multiple of num_attention_heads"),
        ("model.fresh.num_key_value_heads: 3", "does not divide num_attention_heads"),
        ("reward.permuted: true, data.shapes.swapped: true", "reward.permuted and data.shapes.swapped are both true"),
        ("training.mini_batches: 5", "does not divide prompts_per_step"),
        ("training.lora.serving: adapter", "lora.rank is 0, which trains no adapter: set lora.rank, such as 16, or"),
        (
            "training.lora: {rank: 4, vision: true, serving: adapter}, model.fresh.vision.family: qwen2_5_vl",
            "lora.vision adds an adapter to the vision tower, which no engine serves",
        ),
        (
            "training.vision: frozen, training.lora: {rank: 4, serving: adapter}, model.fresh.vision.family: qwen2_5_vl",
            "which is not supported for models that take pictures: set it to merged",
        ),
        ("training.lora: {rank: 4, serving: adapter}, runtime.engine.release_memory: true", "give them up for every"),
        ("training.lora: {rank: 4, serving: adapter}, runtime.engine.tensor_parallel: 2", "set training.lora.serving"),
        ("model.fresh.vision.family: qwen2_5_vl, runtime.engine.tensor_parallel: 2", "runtime.engine.tensor_parallel"),
        ("runtime.engine.tensor_parallel: 3", "tensor_parallel is 3, which cannot divide 4 attention heads, 2"),
        (
            "model.fresh: {num_attention_heads: 16, intermediate_size: 100}, runtime.engine.tensor_parallel: 8",
            "2 key-value heads and an MLP of 100: set it to one of 1, 2, 4",
        ),
        (
            "rollout.deterministic: false, runtime.teacher: {tensor_parallel: 2, servers: ['http://127.0.0.1:1']}",
            "start those as you need them, and set runtime.teacher.tensor_parallel to 1",
        ),
        ("training.samples_per_prompt: 1", "algorithm.advantage grpo compares the samples of a prompt: set"),
        (
            "algorithm: {loss: {name: on_policy_distillation}, teacher: {source: initial, prompt: with_solution}}, "
            "training: {samples_per_prompt: 1, zero_variance_filter: true}",
            "would leave out everything: set zero_variance_filter to false",
        ),
        ("training.dynamic_sampling: {max_aborts: 1, oversampling: 1.5}", "may not depend on how long anything"),
        (
            "rollout.deterministic: false, training.dynamic_sampling: {max_aborts: 1, max_rounds: 5}",
            "there is nothing to cut off: raise oversampling, such as to 1.25, or set max_aborts to 0",
        ),
        ("rollout.deterministic: false, training.dynamic_sampling.partial_rollouts: true", "max_aborts is 0, so that"),
        (
            "rollout.deterministic: true, training.dynamic_sampling: {max_aborts: 1, oversampling: 2.0, partial_rollouts: true}",
            "set rollout.deterministic to false, or max_aborts to 0",
        ),
        (
            "rollout: {deterministic: false, agent: {name: program, command: ['true']}}, "
            "training.dynamic_sampling: {max_aborts: 1, oversampling: 2.0, partial_rollouts: true}",
            "an attempt of rollout.agent program cannot go on in a later step: set partial_rollouts to false",
        ),
        ("training.dynamic_sampling: {spread_of: null, oversampling: 2.0}", "would be sampled for nothing: set"),
        (
            "algorithm.advantage.name: remax, rollout.deterministic: false, training.dynamic_sampling: {max_aborts: 1, oversampling: 2.0}",
            "its spread_of to null where max_aborts is above 0, or take algorithm.advantage: {name: grpo}",
        ),
        ("algorithm.loss: {name: ppo_clip, clip_low: 0.3}", "use clip_high >= clip_low"),
        ("algorithm.loss: {name: gspo, clip_low: 0.2, clip_high: 0.2}", "so delete them for 0.0003 and"),
        ("algorithm.advantage: grpo", "write algorithm.advantage: {name: ...} with one of batch_std, gdpo, gpg, grpo"),
        ("algorithm.advantage.name: gdpo", "accuracy is the only one with a weight: give reward.components"),
        (
            "algorithm.advantage.name: maxrl, algorithm.kl: {coefficient: 0.1, place: reward}",
            "set algorithm.kl.place to loss, or algorithm.kl.coefficient to 0",
        ),
        ("algorithm.loss.name: kl_cov", "with training.mini_batches 1 there is no other: set training.mini_batches"),
        ("reward.components.accuracy.weight: 0.0", "give one of them a weight"),
        ("reward.components.overlong.buffer: 20", "lower it below rollout.max_new_tokens (20)"),
        ("reward.components: [accuracy]", "write a mapping from names to parameters"),
        ("rollout.max_new_tokens: 1000", "max_position_embeddings is 256: raise the latter"),
        ("rollout.top_k: 0", "give -1 to sample from all tokens"),
        ("rollout.top_k: 1", "all samples of a prompt are the same"),
        ("rollout.top_p: 0.9", "set rollout.top_k to 2 to 4096, or rollout.top_p to 1.0"),
        ("rollout.top_k: 5000", "only with a rollout.top_k of at most 4096"),
        ("evaluation.sampling.top_k: 0", "give -1 to sample from all tokens"),
        ("runtime.engine.servers: ['http://127.0.0.1:1']", "set one of them otherwise"),
        ("data.mirror: ''", "give a folder, or null"),
        ("training: {vision: frozen, vision_learning_rate: 0.1}", "set the first to null, or the second to trained"),
        ("training.vision: frozen", "training.vision is of a vision tower, and the model has none: leave it out"),
        ("training.vision_learning_rate: 0.1", "training.vision_learning_rate is of a vision tower"),
        ("sft.vision: frozen", "sft.vision is of a vision tower"),
        ("training.lora.target_modules: [q_proj]", "lora.rank is 0, which trains no adapter: set lora.rank"),
        ("sft.lora.vision: true", "lora.vision is given, but lora.rank is 0"),
        ("sft.lora: {rank: 8, target_modules: []}", "set it to null for all layers"),
        ("training.lora: {rank: 8, target_modules: [lm_head]}", "embeddings and the head have no adapter here"),
        ("training.lora: {rank: 8, target_modules: [q, embed_tokens]}", "names embed_tokens, but embeddings"),
        ("training.lora: {rank: 8, vision: true}", "training.lora.vision is of a vision tower"),
        ("sft.lora: {rank: 8, vision: true}", "sft.lora.vision is of a vision tower"),
        (
            "model.fresh.vision.family: qwen2_5_vl, training.vision: frozen, training.lora: {rank: 8, vision: true}",
            "training.lora.vision is true, but training.vision is frozen: set the first to false",
        ),
        ("model.fresh.vision.family: qwen2_5_vl, training.lora.rank: 8", "training.vision is trained, but"),
        ("model.fresh.vision.family: qwen2_5_vl, sft.lora.rank: 8", "set sft.vision to frozen, or sft.lora.vision to"),
        ("runtime.training: {share_prompts: true, layout: padded}", "runtime.training.share_prompts is true and"),
        ("model.fresh.vision.family: qwen2_5_vl, runtime.training.layout: packed", "runtime.training.layout packed"),
        ("model.fresh.vision.family: qwen2_5_vl, runtime.sft.layout: packed", "runtime.sft.layout packed works with"),
        ("model.fresh.vision.family: qwen2_5_vl, checkpoint.format: megatron", "checkpoint.format megatron has no"),
        ("model.fresh.vision.family: qwen2_5_vl, runtime.training.share_prompts: true", "runtime.training.share_promp"),
        (
            "rollout.deterministic: false, runtime.engine: {release_memory: true, servers: ['http://127.0.0.1:1']}",
            "runtime.engine.release_memory is true, and runtime.engine.servers names servers that run elsewhere",
        ),
        (
            "rollout.deterministic: false, runtime.engine: {replicas: 2, servers: ['http://127.0.0.1:1']}",
            "replicas is 2, and runtime.engine.servers names servers that run elsewhere, beside which a",
        ),
        (
            "rollout.deterministic: false, runtime.engine: {own_gpus: true, servers: ['http://127.0.0.1:1']}",
            "own_gpus is true, and runtime.engine.servers names servers that run elsewhere",
        ),
        (
            "rollout.deterministic: false, runtime.engine: {nodes: 2, servers: ['http://127.0.0.1:1']}",
            "runtime.engine.nodes is 2, and runtime.engine.servers names servers that run elsewhere",
        ),
        ("runtime.engine: {nodes: 1, own_gpus: true}", "runtime.engine.nodes is 1, so that no server shares a"),
        ("runtime.engine: {nodes: 1, weight_sync: tensors}", "leave servers, nodes and own_gpus"),
        (
            "runtime.engine: {replicas: 2, tensor_parallel: 2, weight_sync: tensors}, runtime.training.processes: 2",
            "replicas x tensor_parallel 4, each of which opens the memory of one of",
        ),
        (
            "training.staleness: 1, runtime.engine: {replicas: 2, weight_sync: tensors}, runtime.training.processes: 2",
            "with training.staleness 1 only the first process has the weights that 2 GPUs would open",
        ),
        ("runtime.engine.nodes_per_server: 2", "`runtime.engine`: nodes_per_server is 2, but nodes is 0 and replicas"),
        ("runtime.engine: {nodes: 3, nodes_per_server: 2}", "nodes_per_server is 2, but nodes is 3 and replicas 1:"),
        ("runtime.engine: {nodes: 2, nodes_per_server: 2, replicas: 2}", "replicas 2: set nodes"),
        ("runtime.engine: {nodes: 6, nodes_per_server: 3}", "tensor_parallel x nodes_per_server is 3, which cannot"),
        (
            "training.lora: {rank: 4, serving: adapter}, runtime.engine: {nodes: 2, nodes_per_server: 2}",
            "set training.lora.serving to merged, or runtime.engine.nodes_per_server to 1",
        ),
        (
            "training.lora: {rank: 4, serving: adapter}, runtime.engine: {nodes: 1, weight_sync: distributed}",
            "weights travel in a folder, but runtime.engine.weight_sync is distributed",
        ),
        ("runtime.teacher.nodes: 1", "runtime.teacher.nodes is 1, which is for the policy's engine"),
        ("runtime.engine.nodes: 1, training.backend.name: verl", "runtime.engine.nodes is 1, but training.backend"),
        ("runtime.engine: {max_total_tokens: null, release_memory: true}", "the size of the cache decides which"),
        ("rollout.deterministic: false, runtime.engine.max_total_tokens: null", "the trainer keeps its GPU memory"),
        (
            "rollout.deterministic: false, reward.components.reward_model.folder: models/reward, "
            "runtime.engine: {max_total_tokens: null, release_memory: true}",
            "runtime.reward_model has a server on the same GPU",
        ),
        (
            "reward.components.reward_model.folder: models/reward, runtime.reward_model.max_total_tokens: null",
            "runtime.reward_model.max_total_tokens is null, so that its server takes all free memory of its",
        ),
        ("runtime.engine: {own_gpus: true, release_memory: true}", "a server with its own GPU makes room for no"),
        ("runtime.teacher.replicas: 2", "runtime.teacher.replicas is 2, but one server on the first GPU"),
        (
            "reward.components.reward_model.folder: models/reward, training.staleness: 1, runtime.reward_model.release_memory: true",
            "runtime.reward_model.release_memory releases the GPU meanwhile",
        ),
        ("runtime.reward_model: {replicas: 3, own_gpus: true}", "runtime.reward_model.replicas is 3, but"),
        ("training.staleness: 1, runtime.engine.release_memory: true", "while the policy is updated, but"),
        (
            "rollout.deterministic: false, runtime.engine: {threads: 2, servers: ['http://127.0.0.1:1']}",
            "runtime.engine.threads is 2, and runtime.engine.servers names servers that run elsewhere",
        ),
        ("runtime.teacher: {threads: 2, servers: ['http://127.0.0.1:1']}", "runtime.teacher.threads is 2, and"),
        ("runtime.teacher.weight_sync: folder", "a teacher's weights are loaded once and never synced"),
        ("runtime.teacher.release_memory: true", "release_memory is true, but one server on the first GPU"),
        (
            "algorithm.kl: {estimator: k1, coefficient: 0.1}",
            "whose gradient in the loss is 0 on average: write k1+ or k3",
        ),
        *(
            (
                f"algorithm.kl: {{estimator: {name}, corrected: true}}",
                "set algorithm.kl.estimator to k1 or k3, or corrected to",
            )
            for name in ("abs", "k2", "k1+", "abs+", "k3+")
        ),
        ("algorithm.kl: {corrected: true, place: reward}", "set algorithm.kl.place to loss, or corrected to false"),
        ("algorithm.kl: {estimator: k1+, place: reward}", "write k1, or set algorithm.kl.place to loss"),
        ("algorithm.advantage.name: maxrl, reward.components: {accuracy: {wrong: -0.5}}", "one as low as -0.5: raise"),
        (
            "algorithm.advantage.name: maxrl, reward.components: {accuracy: {unverifiable: -0.25, weight: 2.0}}",
            "one as low as -0.5: raise",
        ),
        (
            "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}, overlong: {weight: 0.5}}",
            "one as low as -0.5: raise",
        ),
        (
            "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}, format: {weight: -0.1}}",
            "one as low as -0.1: raise",
        ),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_the_remedy(values: str, words: str) -> None:
    """Values by dotted key, as YAML."""
    sentence = refused(with_keys({}, yaml.safe_load(f"{{{values}}}")))
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "values",
    [
        "algorithm.kl: {estimator: k1}",
        "algorithm: {advantage: {name: grpo, normalize_by_std: false}, kl: {coefficient: 0.1, place: reward}}",
        "algorithm: {advantage: {name: grpo_passk, normalize_by_std: false}, kl: {coefficient: 0.1, place: reward}}",
        "algorithm: {advantage: {name: rloo}, kl: {coefficient: 0.1, place: reward}}",
        "algorithm: {advantage: {name: reinforce_plus_plus}, kl: {coefficient: 0.1, place: reward}}",
        "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}}",
        "algorithm.advantage.name: maxrl, "
        "reward.components: {accuracy: {wrong: 1, missing: 1, unverifiable: 1}, overlong: {}}",
        "algorithm.advantage.name: maxrl, "
        "reward.components: {accuracy: {wrong: 0.3, missing: 0.3, unverifiable: 0.3}, overlong: {weight: 0.1}, turn_limit: {weight: 0.2}}",
        "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}, overlong: {weight: 0.0}}",
        "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}, overlong: {weight: -1.0}}",
        "algorithm.advantage.name: maxrl, reward.components: {accuracy: {}, reported: {}}",
    ],
)
def test_a_divergence_that_stays_small_and_maxrl_with_rewards_not_known_to_be_negative_are_taken(values: str) -> None:
    parse(with_keys({}, yaml.safe_load(f"{{{values}}}")))


IN_REWARD = {"coefficient": 0.1, "place": "reward"}


@pytest.mark.parametrize(
    ("advantage", "words"),
    [
        ({"name": "grpo"}, "unless algorithm.advantage.normalize_by_std is false"),
        ({"name": "grpo_passk"}, "unless algorithm.advantage.normalize_by_std is false"),
        ({"name": "gpg"}, "cannot recognise once the divergence makes them differ"),
        ({"name": "maxrl"}, "which could be negative"),
        ({"name": "gdpo"}, "and the divergence is not one of them"),
    ],
    ids=lambda values: values["name"] if isinstance(values, dict) else "",
)
def test_a_divergence_in_the_reward_is_refused_where_it_would_not_stay_small(
    advantage: dict[str, Any], words: str
) -> None:
    components = {"accuracy": {}, "format": {"weight": 0.1}}
    values = {"algorithm": {"advantage": advantage, "kl": IN_REWARD}, "reward": {"components": components}}
    sentence = refused(values)
    assert f"algorithm.advantage {advantage['name']} " in sentence
    assert words in sentence
    assert sentence.endswith("set algorithm.kl.place to loss, or algorithm.kl.coefficient to 0.")
    parse(merged(values, {"algorithm": {"kl": {"coefficient": 0.0}}}))


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"correction": {"name": "none"}}, "with algorithm.correction none nothing weighs tokens that earlier weights"),
        (
            {"kl": {"coefficient": 0.1, "corrected": True}},
            "algorithm.kl.corrected multiplies by the ratio to the policy",
        ),
        (
            {
                "terms": {"distillation": {"coefficient": 0.1}},
                "teacher": {"source": "initial", "prompt": "with_solution"},
            },
            "no correction weighs algorithm.terms.distillation",
        ),
    ],
)
def test_what_would_be_wrong_by_other_weights_than_the_policys_is_refused_with_staleness(
    algorithm: dict[str, Any], words: str
) -> None:
    parse({"algorithm": algorithm})
    for off_policy, remedy in (
        ({"training": {"staleness": 1}}, "training.staleness to 0"),
        (PARTIAL, "training.dynamic_sampling.partial_rollouts to false"),
    ):
        sentence = refused({"algorithm": algorithm, **off_policy})
        assert words in sentence
        assert remedy in sentence


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": {"loss": {"name": "dis"}, "correction": {"name": "none"}}},
        {"algorithm": {"kl": {"coefficient": 0.1}, "off_policy_mask": 0.5}},
        {"algorithm": {"advantage": {"name": "remax"}}},
        {"training": {"dynamic_sampling": {"max_rounds": 2}, "retire_at": 0.9}},
        {"rollout": {"deterministic": False}},
    ],
)
def test_staleness_goes_with_whatever_weighs_it(values: dict[str, Any]) -> None:
    stale = values | {"training": {**values.get("training", {}), "staleness": 2}}
    assert parse(stale).training.staleness == 2
    dynamic = {"spread_of": None, **values.get("training", {}).get("dynamic_sampling", {})}
    partial = PARTIAL["training"]["dynamic_sampling"]
    training = {**values.get("training", {}), "dynamic_sampling": {**dynamic, **partial}}
    assert parse({**values, "rollout": {"deterministic": False}, "training": training}).training.off_policy


LEARN_FROM_EQUAL: list[dict[str, Any]] = [
    {"name": "remax"},
    {"name": "reinforce_plus_plus"},
    {"name": "gdpo"},
    {"name": "optimal_token_baseline", "learns_lone_tail": True},
]


def test_groups_that_an_estimator_learns_from_may_be_the_surplus_of_a_round_that_ends_early() -> None:
    """Nothing but how soon a group has finished decides then, also where each has a single sample."""
    dynamic = {"max_aborts": 2, "oversampling": 1.5, "spread_of": None}
    for samples in (1, 4):
        training = {"dynamic_sampling": dynamic, "samples_per_prompt": samples}
        values = {"algorithm": {"advantage": {"name": "remax"}}, "rollout": {"deterministic": False}}
        assert not parse({**values, "training": training}).training.dynamic_sampling.wants_spread


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"zero_variance_filter": True}, "training.zero_variance_filter leaves out: set that to false"),
        ({"dynamic_sampling": {"max_rounds": 2}}, "training.dynamic_sampling throws away: set its max_rounds and"),
        ({"dynamic_sampling": {"oversampling": 1.5}}, "training.dynamic_sampling throws away: set its max_rounds and"),
    ],
)
@pytest.mark.parametrize("advantage", LEARN_FROM_EQUAL, ids=lambda advantage: str(advantage["name"]))
def test_groups_that_an_estimator_learns_from_are_not_thrown_away(
    advantage: dict[str, Any], training: dict[str, Any], words: str
) -> None:
    values = {
        "algorithm": {"advantage": advantage},
        "reward": {"components": {"accuracy": {}, "format": {"weight": 0.1}}},
    }
    parse(values)
    sentence = refused(values | {"training": training})
    assert f"{advantage['name']} can learn from groups of equal rewards, which {words}" in sentence
    parse({"algorithm": {"advantage": {"name": "optimal_token_baseline"}}, "training": training})


@pytest.mark.parametrize(
    ("kept", "sentences"),
    [
        (20, "`training.keep_policies` is 20: write a list, such as [20]."),
        ([], "`training.keep_policies` is []: give at least 1 of them."),
        (["step_10"], "`training.keep_policies.0` is 'step_10': input should be a valid integer."),
        ({"step": 10}, "unknown key `training.keep_policies.step`: write 'every'."),
    ],
)
def test_kept_policies_of_another_form_are_refused_in_one_sentence_about_that_form(kept: Any, sentences: str) -> None:
    with pytest.raises(ValueError, match="params") as caught:
        parse({"training": {"keep_policies": kept}})
    assert str(caught.value).removeprefix("params.yaml: ") == sentences


@pytest.mark.parametrize("shares", [{"gsm8k": 1e6, "arithmetic": 0.5}, {"gsm8k": 1.0, "arithmetic": 1e-320}])
def test_a_share_that_is_too_small_to_be_drawn_is_refused(shares: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"experiment\.train gives arithmetic .* millionth"):
        parse({"experiment": {"train": shares, "evaluate": ["gsm8k"], "tasks": ["arithmetic", "gsm8k"]}})
