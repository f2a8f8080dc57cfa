"""What a program that is not ours gets of our environment."""

import pytest

from dagrpo.utils.child_variables import passed_on, sockets_between_nodes


def test_a_program_gets_what_programs_need_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
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
    unknown = {"MY_PW": "x", "JWT": "x", "STRIPE_SK": "x", "MY_SETTING": "x"}
    with_login = {
        "HTTPS_PROXY": "http://me:secret@proxy",
        "PIP_INDEX_URL": "https://me:secret@index",
        "UV_PUBLISH_TOKEN": "x",
    }
    with_login |= {"UV_INDEX_X_USERNAME": "ghp_x", "UV_INDEX_URL": "https://host/simple?token=abc"}
    secrets |= unknown | with_login
    plain = {
        "TOKENIZERS_PARALLELISM": "false",
        "http_proxy": "http://proxy:3128",
        "PYTHONPATH": "/lab",
        "LC_ALL": "C.UTF-8",
    }
    plain |= {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2", "SSL_CERT_FILE": "/x", "TMPDIR": "/scratch"}
    for name, value in (secrets | plain).items():
        monkeypatch.setenv(name, value)
    variables = passed_on()
    assert not secrets.keys() & variables.keys()
    assert plain.items() <= variables.items()
    assert passed_on(["HF_TOKEN"])["HF_TOKEN"] == "x"
    assert passed_on(["MY_SETTING"])["MY_SETTING"] == "x"


def test_no_proxy_stands_before_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    assert passed_on()["NO_PROXY"] == "intranet,127.0.0.1,localhost"


def test_between_nodes_a_users_interface_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert sockets_between_nodes("eth0") == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}
