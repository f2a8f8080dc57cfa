"""What leaves a finished run is read by the libraries of those who get it, and runs again under another name."""

import json
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard, ModelCard
from tests.pipeline.snakemake import clones
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_publish.crate.reading import read_crate

pytestmark = pytest.mark.dag


def _ran(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(run_by_snakemake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = clones.copied(run_by_snakemake, tmp_path / "clone")
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.nightly  # half a minute of imports
def test_a_published_policy_is_loaded_by_the_libraries_of_the_hub(folder: Path) -> None:
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    listed = _ran("publish", clones.NAME, "--to", "folder:out/policy", "--license", "apache-2.0")
    assert "model.safetensors" in listed
    card = ModelCard.load("out/policy/README.md")
    assert card.data.license == "apache-2.0"
    scores = json.loads((clones.RUN / "eval/arithmetic/trained/scores.json").read_text())
    greedy = card.data.eval_results[0]
    assert (greedy.dataset_name, greedy.metric_value) == ("arithmetic", round(100 * scores["greedy"]["value"], 2))
    assert DatasetCard.load("out/policy-rollouts/README.md").data.license == "apache-2.0"
    assert read_crate(Path("out/policy")).experiment == clones.NAME
    tokenizer = AutoTokenizer.from_pretrained("out/policy")
    model = AutoModelForCausalLM.from_pretrained("out/policy")
    assert model.get_input_embeddings().num_embeddings >= len(tokenizer)
    cache = str(folder / "cache")
    rollouts = load_dataset("out/policy-rollouts", "rollouts", split="train", cache_dir=cache)
    assert set(rollouts["step"]) == set(range(1, clones.STEPS + 1))
    evaluation = load_dataset("out/policy-rollouts", "evaluation", split="trained", cache_dir=cache)
    assert evaluation.num_rows == read_parquet(clones.RUN / "eval/arithmetic/trained/scores.parquet").num_rows


def test_problems_of_other_people_and_secrets_are_not_published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Path("data", clones.NAME, "arithmetic/card.json")
    before = sha256_of(card)
    card.write_text(card.read_text().replace('"origin": "generator"', '"origin": "hub"'))
    record = card.with_name("provenance.json")
    record.write_text(record.read_text().replace(before, sha256_of(card)))
    _ran("publish", clones.NAME, "--to", "folder:out/policy")
    for path in Path("out/policy-rollouts").rglob("*.parquet"):
        table = read_parquet(path)
        assert not {"question", "prompt", "prompt_ids", "ground_truth", "messages", "calls"} & set(table.column_names)
        assert "completion" in table.column_names
    assert "are other people's data" in DatasetCard.load("out/policy-rollouts/README.md").text
    assert ModelCard.load("out/policy/README.md").data.eval_results[0].dataset_name == "arithmetic"
    scores = clones.RUN / "eval/arithmetic/trained/scores.parquet"
    table = read_parquet(scores)
    monkeypatch.setenv("MY_API_KEY", "abcdefgh")
    completion = table.column_names.index("completion")
    write_parquet(scores, table.set_column(completion, "completion", [["it is abcdefgh"] * table.num_rows]))
    done = CliRunner().invoke(app, ("publish", clones.NAME, "--to", "folder:out/again"))
    assert "has a password, a key or a token in its column completion" in str(done.exception)
    assert not Path("out/again").exists()


def test_without_yes_nothing_is_sent(folder: Path) -> None:
    listed = _ran("publish", clones.NAME, "--to", "hub:lab/policy")  # the endpoint is not asked: there is none here
    assert "dataset lab/policy-rollouts" in listed
    assert "Nothing is sent without --yes." in listed
    _ran("publish", clones.NAME, "--to", "folder:out/alone", "--no-rollouts")
    assert [path.name for path in Path("out").iterdir()] == ["alone"]
    assert "rollouts" not in Path("out/alone/README.md").read_text()


@pytest.mark.nightly
def test_a_crate_runs_again_elsewhere_to_the_same_bytes(run_by_snakemake: Path, tmp_path: Path) -> None:
    first, elsewhere = clones.copied(run_by_snakemake, tmp_path / "first"), clones.clone(tmp_path / "elsewhere")
    clones.run(first, "dagrpo", "crate", clones.NAME, "--to", "../a.crate")
    before = (elsewhere / "params.yaml").read_bytes()
    assert "train" in clones.run(elsewhere, "dagrpo", "reproduce", "../a.crate", "-n")
    output = clones.run(elsewhere, "dagrpo", "reproduce", "../a.crate", timeout=900)
    assert "Everything is equal to the byte" in output
    assert (elsewhere / "params.yaml").read_bytes() == before
    assert not (elsewhere / "results" / clones.NAME).exists()
