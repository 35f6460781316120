"""What to do about an error, where the error's own text does not say it."""

from __future__ import annotations

from firnmq.cli.node import NodeRefused, NodeUnreachable
from firnmq.errors import (
    AlreadyExists,
    Corruption,
    DirectoryInUse,
    DiskFull,
    FirnError,
    KeyNotFound,
    OffsetOutOfRange,
    OtherFormat,
    ShardNotFound,
    StorageTypeNotFound,
    TopicNotFound,
)


class NoDataDirectory(FirnError):
    """The command reads a data directory, and there is none at the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no data directory at {path}")
        self.path = path


class PackageMissing(FirnError):
    """The command needs an optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package {package} is not installed: pip install 'firnmq[{extra}]'")
        self.package = package
        self.extra = extra


class BadInput(FirnError):
    """Something in a file of records cannot be written; `written_count` records before it were."""

    def __init__(self, source: str, line_number: int, reason: str, written_count: int) -> None:
        before = f"; records stored before it: {written_count:,}" if written_count else ""
        super().__init__(f"{source}, line {line_number:,}: {reason}{before}")
        self.source = source
        self.line_number = line_number
        self.reason = reason
        self.written_count = written_count


def hint_for(error: BaseException) -> str | None:
    match error:
        case NodeUnreachable():
            return "firn serve starts one; --node or FIRN_NODE says where it is"
        case NodeRefused(kind="TopicNotFound"):
            return "firn topic list shows the topics of the node"
        case NodeRefused(kind="GroupNotFound"):
            return "firn group list shows the groups of the node"
        case DirectoryInUse():
            return "if a node has it open, go through the node: --node URL or FIRN_NODE"
        case NoDataDirectory():
            return (
                "name one with --data or FIRN_DATA, or make one with: firn topic create NAME "
                f"--data {error.path}"
            )
        case TopicNotFound():
            return "firn topic list shows the topics of the data directory"
        case ShardNotFound():
            return "firn topic describe TOPIC shows the topic's shards"
        case StorageTypeNotFound():
            return "memory, rocksdb and segment are built in; other types come from packages"
        case KeyNotFound():
            return "keys are compared byte by byte; deleted and expired records are not found"
        case OffsetOutOfRange():
            return (
                f"the readable offsets are {error.start} to {error.end - 1}"
                if (error.end > error.start)
                else "the shard is empty"
            )
        case AlreadyExists(kind="topic"):
            return "firn topic describe shows it; firn topic delete removes it and its records"
        case OtherFormat():
            return "nothing in it was changed"
        case Corruption():
            return "firn verify checks everything; firn dump FILE shows a segment file's batches"
        case DiskFull():
            return "free some room and try again; what was acknowledged is safe"
        case _:
            return None
