"""What keeps processes that compute together on this machine: a part of the environment that they are started in."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # else they listen where the host's name points to
