"""Environment variables of child processes."""

import os
import re
from collections.abc import Sequence

import psutil

from dagrpo.core.errors import UserError
from dagrpo.core.redaction import is_secret, secret_parameters

HERE = "127.0.0.1,localhost"
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Variables of a distributed training, with which a program would wait for the training's other processes.
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC")
# What programs need to start: a place to write, a language, a Python, devices, certificates, a way to the network.
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|TERM|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TMP|TEMP|XDG_\w+|LD_LIBRARY_PATH"
    r"|PYTHON\w*|VIRTUAL_ENV|CONDA_\w+|(UV|PIP)_(?!\w*USERNAME)\w+|NODE_PATH|NVM_DIR|GOPATH|JAVA_HOME|TOKENIZERS_PARALLELISM"
    r"|(HF|TRANSFORMERS)_\w+|(CUDA|CUBLAS|NVIDIA|NCCL|PYTORCH|TORCH|HIP|ROCR|OMP)_\w+|\w+_NUM_THREADS"
    r"|SSL_CERT_\w+|\w+_CA_BUNDLE|NODE_EXTRA_CA_CERTS|(https?|all|no)_proxy",
    re.IGNORECASE,
)


def is_of_a_launcher(name: str) -> bool:
    """Return True for a variable by which the processes of one training know each other."""
    return name.startswith(_OF_A_LAUNCHER) or name.endswith(("_RANK", "_WORLD_SIZE"))


def alone() -> dict[str, str]:
    """Return this environment for a program that is to know nothing of the training whose processes this one was launched with."""
    return {name: value for name, value in os.environ.items() if not is_of_a_launcher(name)}


def sockets_on(interface: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL listen on one interface; else they do where the host's name points to."""
    return dict.fromkeys(SOCKETS, interface)


def sockets_between_nodes(interface: str) -> dict[str, str]:
    """Return the same variables for processes of several nodes: where this environment names other interfaces, those."""
    return {name: os.environ.get(name) or interface for name in SOCKETS}


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address of this machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return str(name)
    raise UserError(f"{address} is no address of this machine: set runtime.address to one of the first node's.")


LOOPBACK = sockets_on("lo")
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch's key-value store warns of each address without a name


def passed_on(kept: Sequence[str] = ()) -> dict[str, str]:
    """Return the listed variables of this environment for a foreign program, without those that look like secrets.

    `kept`: names that the program needs besides. Proxies are switched off for addresses of this machine.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in kept or (_PASSED.fullmatch(name) and not is_secret(name, value) and not secret_parameters(value))
    }
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), HERE]))
    return variables


def access_variables(base_url: str, key: str) -> dict[str, str]:
    """Return the variables in which OpenAI's clients look for their address and key."""
    return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
