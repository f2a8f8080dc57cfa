"""Serves a store of one kind on loopback, and prints its port: a program of the environment .venv-remotes."""

import asyncio
import sys
import time
from pathlib import Path

KEY = "key"  # of host and user, in the folder


def serve_s3() -> None:
    """Serve S3 with the bucket `bucket`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1").create_bucket(Bucket="bucket")
    _say(port)
    time.sleep(3600)


def serve_gs() -> None:
    """Serve Google Cloud Storage with the bucket `bucket`."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    _say(server._api._httpd.socket.getsockname()[1])
    time.sleep(3600)


async def serve_ssh() -> None:
    """Serve SFTP to the holder of the folder's key, as a user of any name."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(KEY)
    Path(KEY).chmod(0o600)
    keys = asyncssh.import_authorized_keys(key.export_public_key().decode())
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=keys, sftp_factory=True
    )
    _say(server.get_port())
    await asyncio.sleep(3600)


def _say(port: int) -> None:
    print(f"port {port}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "ssh":
        asyncio.run(serve_ssh())
    else:
        {"s3": serve_s3, "gs": serve_gs}[sys.argv[1]]()
