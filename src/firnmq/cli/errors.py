"""What to do about an error, where the error's own text does not say it."""

from __future__ import annotations

from firnmq.cli.node import NodeRefused
from firnmq.errors import (
    AlreadyExists,
    CannotListen,
    Corruption,
    FirnError,
    OffsetOutOfRange,
    OtherFormat,
)


class NoDataDirectory(FirnError):
    """The command reads a data directory, and there is none at the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no data directory at {path}")
        self.path = path


class DirectoryServed(FirnError):
    """The command opens the data directory itself, and a node serves it."""

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(f"{path} is served by a node, process {pid}")
        self.path = path
        self.pid = pid


class NodeNeeded(FirnError):
    """Only a node can answer the command, and no node serves the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"this command needs a running node, and no node serves {path}")
        self.path = path


class NodeNotNamed(FirnError):
    """The command changes something, and the only target is a node that the user did not name."""

    def __init__(self, url: str, where: str, data: str) -> None:
        super().__init__(
            f"nothing was changed: there is no {data} here, and the node that answers at {url}"
            f"{where} was not named"
        )
        self.url = url
        self.data = data


class NodeWithoutHttp(FirnError):
    """The node that serves the data directory has no HTTP listener to work through."""

    def __init__(self, path: str, kafka: str) -> None:
        super().__init__(f"{path} is served by the node at {kafka}, which has no HTTP listener")
        self.path = path


class PackageMissing(FirnError):
    """The command needs an optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package {package} is not installed: pip install 'firnmq[{extra}]'")
        self.package = package
        self.extra = extra


class NoAnswer(FirnError):
    """The command asked a question, and standard input had ended."""

    def __init__(self) -> None:
        super().__init__("not confirmed: standard input has ended")


class BadInput(FirnError):
    """Something in a file of records cannot be written; `written_count` records before it were."""

    def __init__(self, source: str, line_number: int, reason: str, written_count: int) -> None:
        before = f"; records stored before it: {written_count:,}" if written_count else ""
        super().__init__(f"{source}, line {line_number:,}: {reason}{before}")
        self.source = source
        self.line_number = line_number
        self.reason = reason
        self.written_count = written_count


_HINTS = {
    "NodeUnreachable": (
        "firn serve starts a node; --node or FIRN_NODE names its HTTP address, "
        "whose port is 9644 by default (9092 is for Kafka clients)"
    ),
    "DirectoryServed": "stop the node first: this command needs the directory to itself",
    "NodeWithoutHttp": "start the node without --no-admin, or stop it first",
    "NoAnswer": "--yes does not ask; a password comes from --password-file",
    "TopicNotFound": "firn topic list shows the topics",
    "GroupNotFound": "firn group list shows the groups",
    "DirectoryInUse": (
        "that process is not a node that commands can go through, or it is just starting; "
        "wait for it or stop it"
    ),
    "ShardNotFound": "firn topic describe TOPIC shows the topic's shards",
    "StorageTypeNotFound": (
        "memory, rocksdb and segment are built in; other types come from packages"
    ),
    "KeyNotFound": "keys are compared byte by byte; deleted and expired records are not found",
    "DiskFull": "free some room and try again; what was acknowledged is safe",
}
"""By the error's type, which is the same whether a node or the command itself met the error."""


def hint_for(error: BaseException) -> str | None:
    match error:
        case NodeNeeded():
            return f"start one with: firn serve --data {error.path}; or name one with --node URL"
        case NodeNotNamed():
            return f"--node {error.url} means that node; --data {error.data} a directory of its own"
        case PackageMissing(extra="lake"):
            return "in a checkout, make lake installs Spark, Iceberg and a Java into .venv"
        case NoDataDirectory():
            return (
                "name one with --data or FIRN_DATA, or make one with: firn topic create NAME "
                f"--data {error.path}"
            )
        case OffsetOutOfRange():
            return (
                f"the readable offsets are {error.start} to {error.end - 1}"
                if (error.end > error.start)
                else "the shard is empty"
            )
        case CannotListen(other=CannotListen()):
            return (
                "firn serve --port N --admin-port N, or the variables FIRN_KAFKA_PORT and "
                "FIRN_ADMIN_PORT, set the ports; --port 0 takes free ports for both"
            )
        case CannotListen():
            option = "" if error.setting == "kafka" else f"{error.setting}-"
            variable = f"FIRN_{error.setting.upper()}"
            return (
                f"firn serve --{option}port N or the variable {variable}_PORT sets the port, "
                f"--{option}host or {variable}_HOST the address; --port 0 takes free ports for both"
            )
        case AlreadyExists(kind="topic") | NodeRefused(kind="AlreadyExists"):
            return "firn topic describe shows it; firn topic delete removes it and its records"
        case OtherFormat():
            return "nothing in it was changed"
        case Corruption():
            return "firn verify checks everything; firn dump FILE shows a segment file's batches"
        case NodeRefused():
            return _HINTS.get(error.kind)
        case _:
            return _HINTS.get(type(error).__name__)
