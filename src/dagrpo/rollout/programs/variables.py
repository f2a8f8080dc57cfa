"""The environment of a program that is not ours: this process's own without secrets."""

import os
from collections.abc import Sequence

from dagrpo.redaction import is_secret

HERE = "127.0.0.1,localhost"


def without_secrets(kept: Sequence[str] = ()) -> dict[str, str]:
    """Variables whose name has a word such as KEY or TOKEN, or whose value is an address with a name or password, are left out.

    `kept`: names of some that the program needs all the same. No proxy stands before an address of this machine.
    """
    variables = {name: value for name, value in os.environ.items() if name in kept or not is_secret(name, value)}
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), HERE]))
    return variables


def access_variables(base_url: str, key: str) -> dict[str, str]:
    """Under which OpenAI's clients look for the address and the key that they are to use."""
    return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
