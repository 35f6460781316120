"""Finds and discards unfinished multipart uploads of an S3 bucket.

A multipart upload that is neither completed nor aborted is invisible and is charged for. obstore
aborts a failed upload if the store answers and the process lives. This module discards the rest
with two requests that obstore does not offer, signed here (AWS Signature Version 4). It needs keys;
if the credentials come from a role, a lifecycle rule of the bucket has to discard the uploads.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from firnmq.config import StoreOptions
from firnmq.errors import StoreDenied, StoreTimedOut, StoreUnavailable
from firnmq.tiering.stores.api import every_key

_REGION = "us-east-1"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """A bucket and its credentials; obstore looks up fields that are None."""

    bucket: str
    endpoint: str | None
    region: str
    key: str | None
    secret: str | None = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def of(cls, bucket: str, options: StoreOptions) -> S3Access:
        """From the options, with the usual environment variables as defaults."""
        environment = os.environ.get
        from_options = options.access_key is not None
        return cls(
            bucket=bucket,
            endpoint=options.endpoint
            or environment("AWS_ENDPOINT_URL_S3")
            or environment("AWS_ENDPOINT_URL"),
            region=options.region
            or environment("AWS_REGION")
            or environment("AWS_DEFAULT_REGION")
            or _REGION,
            key=options.access_key or environment("AWS_ACCESS_KEY_ID"),
            secret=options.secret_key or environment("AWS_SECRET_ACCESS_KEY"),
            token=options.session_token if from_options else environment("AWS_SESSION_TOKEN"),
        )


class Unfinished(NamedTuple):
    key: str
    upload_id: str
    begun_ms: int


class UnfinishedUploads:
    """The bucket's multipart uploads that have neither been completed nor aborted."""

    def __init__(self, access: S3Access, *, timeout_ms: int) -> None:
        self._access = access
        self._timeout_s = timeout_ms / 1000
        endpoint = access.endpoint or f"https://s3.{access.region}.amazonaws.com"
        self._endpoint = endpoint.rstrip("/")

    @property
    def is_usable(self) -> bool:
        return self._access.key is not None and self._access.secret is not None

    def discard(
        self,
        url: str,
        prefix: str,
        *,
        before_ms: int | None = None,
        is_key: bool = False,
        is_meant: Callable[[str], bool] = every_key,
    ) -> int:
        """Aborts uploads whose key begins with the prefix, or equals it; how many."""
        count = 0
        for found in list(self.begun(url, prefix)):
            is_there = found.key == prefix if is_key else found.key.startswith(prefix)
            if (
                is_there
                and is_meant(found.key)
                and (before_ms is None or found.begun_ms < before_ms)
            ):
                self._request(url, "DELETE", found.key, {"uploadId": found.upload_id})
                count += 1
        return count

    def begun(self, url: str, prefix: str) -> Iterator[Unfinished]:
        query = {"uploads": "", "prefix": prefix}
        while True:
            page = ElementTree.fromstring(self._request(url, "GET", "", query))
            space = page.tag.partition("}")[0] + "}" if page.tag.startswith("{") else ""

            def text(node: ElementTree.Element, name: str, space: str = space) -> str:
                return node.findtext(f"{space}{name}") or ""

            for node in page.iter(f"{space}Upload"):
                begun = datetime.fromisoformat(text(node, "Initiated"))
                yield Unfinished(
                    text(node, "Key"), text(node, "UploadId"), int(begun.timestamp() * 1000)
                )
            marker = text(page, "NextKeyMarker")
            if text(page, "IsTruncated") != "true" or not marker:
                return
            query |= {"key-marker": marker, "upload-id-marker": text(page, "NextUploadIdMarker")}

    def _request(self, url: str, method: str, key: str, query: dict[str, str]) -> bytes:
        path = "/" + quote(self._access.bucket + (f"/{key}" if key else ""), safe="/-_.~")
        encoded = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
            for name, value in sorted(query.items())
        )
        request = urllib.request.Request(
            f"{self._endpoint}{path}?{encoded}",
            method=method,
            headers=self._signed(method, path, encoded, datetime.now(UTC)),
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and method == "DELETE":
                    return b""  # Completed or aborted since the list.
                if 400 <= error.code < 500:
                    raise StoreDenied(url, f"{method} answered {error.code}", key=key) from error
                raise StoreUnavailable(url, f"{method} answered {error.code}", key=key) from error
        except (OSError, http.client.HTTPException) as error:
            # urllib wraps a time-out before the response, but not one within it.
            if isinstance(getattr(error, "reason", error), TimeoutError):
                what = f"{method} of unfinished uploads"
                raise StoreTimedOut(url, what, int(self._timeout_s * 1000), key=key) from error
            raise StoreUnavailable(url, f"{method} failed: {error}", key=key) from error

    def _signed(self, method: str, path: str, query: str, now: datetime) -> dict[str, str]:
        """Headers with the signature; steps and names follow the AWS specification."""
        access = self._access
        assert access.key is not None
        assert access.secret is not None
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        day = stamp[:8]
        headers = {
            "host": urlsplit(self._endpoint).netloc,
            "x-amz-content-sha256": _EMPTY_SHA256,
            "x-amz-date": stamp,
        }
        if access.token is not None:
            headers["x-amz-security-token"] = access.token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = "\n".join((method, path, query, lines, names, _EMPTY_SHA256))
        scope = f"{day}/{access.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, digest))
        signing_key = b"AWS4" + access.secret.encode()
        for part in (day, access.region, "s3", "aws4_request"):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        signature = hmac.digest(signing_key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={access.key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return headers
