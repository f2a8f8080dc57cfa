"""The environment of a program that is not ours: this process's own without secrets."""

import os
import re
from collections.abc import Sequence

# Ends of words; such as in PGPASSWORD and OPENAI_APIKEY. TOKENIZERS_PARALLELISM has none of them.
_SECRET_WORD = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIAL|CRED|AUTH|COOKIE)S?(?![A-Z])|(?<![A-Z])(PAT|DSN)(?![A-Z])"
    r"|(?<=[A-Z]_)PWD$|CONNECTION_?STRING"
)
_WITH_PASSWORD = re.compile(r"://[^/\s]+@|://[^\s@]*:\S*@|(?<![a-z])(password|pwd|accountkey)\s*=", re.IGNORECASE)
HERE = "127.0.0.1,localhost"


def without_secrets(kept: Sequence[str] = ()) -> dict[str, str]:
    """Variables whose name has a word such as KEY or TOKEN, or whose value is an address with a name or password, are left out.

    `kept`: names of some that the program needs all the same. No proxy stands before an address of this machine.
    """
    variables = {name: value for name, value in os.environ.items() if name in kept or not is_secret(name, value)}
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), HERE]))
    return variables


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one that opens something."""
    return _SECRET_WORD.search(name.upper()) is not None or _WITH_PASSWORD.search(value) is not None


def access_variables(base_url: str, key: str) -> dict[str, str]:
    """Under which OpenAI's clients look for the address and the key that they are to use."""
    return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
