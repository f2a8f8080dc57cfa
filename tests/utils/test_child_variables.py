"""What a program that is not ours gets of our environment."""

import pytest

from dagrpo.utils.child_variables import without_secrets


def test_secrets_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "MLFLOW_TRACKING_PASSWORD": "x",
        "SGLANG_API_KEY": "x",
        "openai_api_key": "x",
        "DATABASE_URL": "postgres://me:secret@host/db",
        "UNQUOTED_URL": "postgres://me:sec/ret@host/db",
        "REMOTE": "https://ghp_abc@github.com/me/mine",
        "PGPASSWORD": "x",
        "MYSQL_PWD": "x",
        "GITHUB_PAT": "x",
        "OPENAI_APIKEY": "x",
        "STORAGE_CONNECTION_STRING": "x",
        "DATABASE": "Server=here;User=me;Password=x",
    }
    plain = {"TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us", "HOME_PAGE": "https://example.org/a@b"}
    plain |= {"OLDPWD": "/", "XAUTHORITY": "/x", "PATTERN": "a"}
    for name, value in (secrets | plain).items():
        monkeypatch.setenv(name, value)
    variables = without_secrets()
    assert not secrets.keys() & variables.keys()
    assert plain.items() <= variables.items()
    assert without_secrets(["HF_TOKEN"])["HF_TOKEN"] == "x"


def test_no_proxy_stands_before_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    assert without_secrets()["NO_PROXY"] == "intranet,127.0.0.1,localhost"
