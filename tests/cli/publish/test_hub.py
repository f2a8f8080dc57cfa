"""Repositories reach the hub by the real client, as one commit each; what it refuses is one sentence."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.publish.stand_in import Hub, serving

from dagrpo.cli.publish.hub import require_name, send
from dagrpo.cli.publish.repositories import Repository
from dagrpo.core.errors import UserError

TOKEN = "hf_secretsecret"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving(monkeypatch) as hub:
        yield hub


@pytest.fixture
def repositories(tmp_path: Path) -> list[Repository]:
    texts = {
        "README.md": b"---\nlibrary_name: transformers\n---\n# A\n",
        "model.safetensors": b"\0" * 4000,
        "crate/a.json": b"{}",
    }
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    files = {name: tmp_path / name for name in texts}
    return [
        Repository(kind="dataset", name="a-rollouts", files={"README.md": files["README.md"]}),
        Repository(kind="model", name="a", files=files),
    ]


def test_every_file_arrives_with_its_bytes_the_large_ones_by_lfs(hub: Hub, repositories: list[Repository]) -> None:
    addresses = send(repositories, "lab", public=False)
    assert addresses == [f"{hub.address}/datasets/lab/a-rollouts", f"{hub.address}/lab/a"]
    assert hub.repositories["models/lab/a"] == {name: path.read_bytes() for name, path in repositories[1].files.items()}
    assert [*hub.repositories["datasets/lab/a-rollouts"]] == ["README.md"]
    assert len(hub.objects) == 1
    assert hub.tokens <= {f"Bearer {TOKEN}", ""}
    assert sum("/commit/main" in each for each in hub.requests) == 2


@pytest.mark.parametrize(("public", "visibility"), [(False, "private"), (True, "public")])
def test_a_new_repository_is_private_unless_asked_for(
    hub: Hub, repositories: list[Repository], public: bool, visibility: str
) -> None:
    send(repositories, "lab", public=public)
    assert set(hub.visibility.values()) == {visibility}


@pytest.mark.parametrize(
    ("status", "remedy"), [(403, "take a token that may write"), (404, "run the same command again")]
)
def test_a_refusal_is_a_sentence_without_the_token(
    hub: Hub, repositories: list[Repository], status: int, remedy: str
) -> None:
    hub.status = status
    with pytest.raises(UserError, match=remedy) as refused:
        send(repositories, "lab", public=False)
    assert TOKEN not in str(refused.value)


def test_without_a_token_the_hub_is_not_asked(
    hub: Hub, repositories: list[Repository], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match="needs a token that may write: set HF_TOKEN"):
        send(repositories, "lab", public=False)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["a", "a/b/c", "a b/c", "../b", ""])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="write hub:ORG/NAME"):
        require_name(name)
