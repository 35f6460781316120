"""How a member of etcd is started: which program, with which options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from firnmq.config import EtcdConfig
from firnmq.errors import InvalidArgument
from firnmq.meta.etcd_versions import checked_version

_BUILT = Path("var") / "etcd" / "etcd"
_VERSION = re.compile(r"etcd Version:\s*(\S+)")
_ASK_S = 10.0


def find_program(config: EtcdConfig) -> Path:
    """The configured etcd, the one that `make etcd` has built, or the one in PATH.

    InvalidArgument if there is none; EtcdRefused if its version is known to lose data.
    """
    program = config.program
    if program is None:
        built = Path(__file__).resolve().parents[4] / _BUILT
        found = shutil.which("etcd")
        if not built.exists() and found is None:
            raise InvalidArgument(
                "etcd.program",
                "there is no etcd: run `make etcd`, or set it to one of 3.6 or newer",
            )
        program = built if built.exists() else Path(str(found))
    try:
        told = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidArgument("etcd.program", f"{program} cannot be run: {error}") from error
    version = _VERSION.search(told.stdout)
    if version is None:
        raise InvalidArgument("etcd.program", f"{program} is not etcd")
    checked_version(version[1], str(program))
    return program.resolve()


def member_command(config: EtcdConfig, program: Path, directory: Path) -> list[str]:
    """The program with all its options; nothing else says what it does."""
    scheme = "http" if config.ca_file is None else "https"
    peers = config.peers or (f"{config.name}={config.peer_endpoint}",)
    command = [
        str(program),
        f"--name={config.name}",
        f"--data-dir={directory}",
        f"--listen-client-urls={scheme}://{config.listen_host}:{config.client_port}",
        f"--advertise-client-urls={scheme}://{config.client_endpoint}",
        f"--listen-peer-urls={scheme}://{config.listen_host}:{config.peer_port}",
        f"--initial-advertise-peer-urls={scheme}://{config.peer_endpoint}",
        "--initial-cluster=" + ",".join(each.replace("=", f"={scheme}://") for each in peers),
        f"--initial-cluster-state={'existing' if config.is_joining else 'new'}",
        f"--quota-backend-bytes={config.quota_bytes}",
        "--auto-compaction-mode=revision",
        f"--auto-compaction-retention={config.revisions_kept}",
        "--logger=zap",
        "--log-outputs=stderr",
        "--log-level=warn",
    ]
    if config.ca_file is not None:
        for kind in ("", "peer-"):
            command += [
                f"--{kind}trusted-ca-file={config.ca_file.resolve()}",
                f"--{kind}cert-file={_resolved(config.certificate_file)}",
                f"--{kind}key-file={_resolved(config.key_file)}",
                f"--{kind}client-cert-auth",
            ]
    return command


def _resolved(path: Path | None) -> Path:
    assert path is not None, "the configuration has all three files or none"
    return path.resolve()
