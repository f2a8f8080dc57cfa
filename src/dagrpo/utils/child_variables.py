"""Environment variables of child processes."""

import os
from collections.abc import Sequence

from dagrpo.core.redaction import is_secret

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # else they listen where the host's name points to


HERE = "127.0.0.1,localhost"


def without_secrets(kept: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment without variables whose name has a word such as KEY or TOKEN, or whose value is an address with a login.

    `kept`: names that the program needs all the same. Proxies are switched off for addresses of this machine.
    """
    variables = {name: value for name, value in os.environ.items() if name in kept or not is_secret(name, value)}
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), HERE]))
    return variables


def access_variables(base_url: str, key: str) -> dict[str, str]:
    """Return the variables in which OpenAI's clients look for their address and key."""
    return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
