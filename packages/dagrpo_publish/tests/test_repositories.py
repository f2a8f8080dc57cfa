"""Repositories reach the hub as one commit each; what it refuses is one sentence."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError

from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo_publish import repositories as publishing
from dagrpo_publish.repositories import Repository, _texts, require_name, send

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"


class Api:
    """The hub's client, which keeps what it is given."""

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, dict[str, bytes]]] = []
        self.status = 200

    def create_repo(self, name: str, *, repo_type: str, private: bool, exist_ok: bool) -> str:
        if self.status != 200:
            response = httpx.Response(self.status, request=httpx.Request("POST", "https://hub"))
            raise HfHubHTTPError(f"refused {TOKEN}", response=response)
        assert exist_ok
        self.private[f"{repo_type}s/{name}"] = private
        return f"https://hub/{name}"

    def create_commit(
        self, name: str, files: Sequence[CommitOperationAdd], *, commit_message: str, repo_type: str
    ) -> None:
        made = {each.path_in_repo: Path(str(each.path_or_fileobj)).read_bytes() for each in files}
        self.commits.append((f"{repo_type}s/{name}", made))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    api = Api()
    monkeypatch.setattr(publishing, "HfApi", lambda: api)
    return api


@pytest.fixture
def repositories(tmp_path: Path) -> list[Repository]:
    files = {name: tmp_path / name for name in ("README.md", "model.safetensors", "crate/a.json")}
    for name, path in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return [
        Repository(kind="dataset", name="a-rollouts", files={"README.md": files["README.md"]}),
        Repository(kind="model", name="a", files=files),
    ]


@pytest.mark.parametrize("public", [False, True])
def test_every_file_arrives_in_one_commit_and_a_repository_is_private_unless_asked_for(
    hub: Api, repositories: list[Repository], public: bool
) -> None:
    assert send(repositories, "lab", public=public) == ["https://hub/lab/a-rollouts", "https://hub/lab/a"]
    assert hub.commits == [
        ("datasets/lab/a-rollouts", {"README.md": b"README.md"}),
        ("models/lab/a", {name: name.encode() for name in repositories[1].files}),
    ]
    assert set(hub.private.values()) == {not public}


@pytest.mark.parametrize(
    ("status", "remedy"), [(403, "take a token that may write"), (404, "run the same command again")]
)
def test_a_refusal_is_a_sentence_without_the_token(
    hub: Api, repositories: list[Repository], status: int, remedy: str
) -> None:
    hub.status = status
    with pytest.raises(UserError, match=remedy) as refused:
        send(repositories, "lab", public=False)
    assert TOKEN not in str(refused.value)


def test_without_a_token_the_hub_is_not_asked(
    hub: Api, repositories: list[Repository], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match="needs a token that may write: set HF_TOKEN"):
        send(repositories, "lab", public=False)
    assert hub.private == {}


@pytest.mark.parametrize("name", ["a", "a/b/c", "a b/c", "../b", ""])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="write hub:ORG/NAME"):
        require_name(name)


@pytest.mark.parametrize("value", [TOKEN, [TOKEN], [{"name": "search", "result": TOKEN}], {"result": TOKEN}])
def test_a_secret_is_seen_wherever_a_column_holds_it(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    column = pa.chunked_array([pa.array([value])])
    assert any(redacted(text) != text for text in _texts(column))
