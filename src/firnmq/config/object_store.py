"""How to reach an object store: addresses, credentials, time-outs, retries."""

from __future__ import annotations

from dataclasses import dataclass, field

from firnmq.errors import InvalidArgument

SCHEMES = ("file", "s3", "gs", "az", "hdfs")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a store's URL does not say. What is None here is looked up the way the store's own
    tools do: environment variables, then the machine's or the container's role.
    """

    endpoint: str | None = None
    """Address of the service, where it is not the provider's own: MinIO, SeaweedFS, an emulator."""

    region: str | None = None
    """Region of the bucket. S3 only; where nothing says it, us-east-1."""

    access_key: str | None = None
    """S3: the access key. Azure: the account. Given together with `secret_key`."""

    secret_key: str | None = field(default=None, repr=False)
    """S3: the secret key. Azure: the account's key."""

    session_token: str | None = field(default=None, repr=False)
    """S3: belongs to temporary keys."""

    credentials_file: str | None = None
    """Google: a service account's key file."""

    allow_http: bool = False
    """Whether an endpoint may be http://, where anyone on the way can read and change the data."""

    connect_timeout_ms: int = 5_000
    """For a connection. A live server needs one round trip or two."""

    timeout_ms: int = 20_000
    """For a whole request with its body: a part of 8 MiB at half a megabyte a second."""

    retries: int = 3
    """Retries of an idempotent request after 5xx, broken connections and time-outs."""

    retry_timeout_ms: int = 30_000
    """No retry begins later than this after the first try. A call to a store that does not answer
    thus ends after at most this and one `timeout_ms`."""

    part_bytes: int = 8 * _MIB
    """Size of the parts of an upload. S3 takes 5 MiB at least and 10,000 parts at most."""

    parts_in_flight: int = 8
    """Parts of one upload that are sent at once: memory is about this times `part_bytes`."""

    def __post_init__(self) -> None:
        self.check_keys()
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidArgument("endpoint", f"{self.endpoint!r} begins with no http(s)://")
        if (self.endpoint or "").startswith("http://") and not self.allow_http:
            raise InvalidArgument("endpoint", f"{self.endpoint} is not https; set allow_http=true")
        for name in ("connect_timeout_ms", "timeout_ms", "retry_timeout_ms", "parts_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidArgument(name, f"{getattr(self, name)} is less than 1")
        if self.retries < 0:
            raise InvalidArgument("retries", f"{self.retries} is less than 0")
        if self.part_bytes < 5 * _MIB:
            raise InvalidArgument("part_bytes", f"{self.part_bytes:,} is less than 5 MiB")

    def check_keys(self) -> None:
        """InvalidArgument if one of the two keys is given without the other."""
        half = half_of_keys(self.access_key, self.secret_key)
        if half is not None:
            raise InvalidArgument(
                half[0], f"is given without {half[1]}; give access_key and secret_key, or neither"
            )


def half_of_keys(access_key: str | None, secret_key: str | None) -> tuple[str, str] | None:
    """The names of the key that is given and of the one that is missing; None if both or neither
    are given."""
    if (access_key is None) == (secret_key is None):
        return None
    names = ("access_key", "secret_key")
    return names if secret_key is None else names[::-1]
