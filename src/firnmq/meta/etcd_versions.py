"""Which versions of etcd are safe to use."""

from __future__ import annotations

from firnmq.errors import FirnError

_OLDEST = (3, 4, 22)
_THAT_LOSE_DATA = {(3, 5, 0), (3, 5, 1), (3, 5, 2)}


class EtcdRefused(FirnError):
    """etcd refuses our credentials, or has an unsafe version. An operator must act."""


def checked_version(version: str, where: str) -> tuple[int, ...]:
    """The version's numbers; EtcdRefused if it is known to lose data."""
    try:
        numbers = tuple(int(each) for each in version.split("-", maxsplit=1)[0].split("."))
    except ValueError:
        raise EtcdRefused(f"{where} has the version {version!r}, which is none of etcd") from None
    if numbers < _OLDEST or numbers in _THAT_LOSE_DATA:
        raise EtcdRefused(
            f"etcd {version} at {where} can lose data; run 3.6 or newer (make etcd builds it)"
        )
    return numbers
