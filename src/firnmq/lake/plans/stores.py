"""Object stores as readers open them: where a plan says, with the credentials of the options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from firnmq.config.object_store import half_of_keys
from firnmq.errors import InvalidArgument, StoreUnavailable
from firnmq.lake.plans.plan import StorePlace

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore


def store_place(options: Mapping[str, str]) -> StorePlace:
    """Where the options `store`, `store.endpoint`, … say that objects are."""
    url = options.get("store")
    if not url:
        raise InvalidArgument("store", "is missing; give s3://bucket/prefix or file:///directory")
    return StorePlace(
        url=url,
        endpoint=options.get("store.endpoint"),
        region=options.get("store.region"),
        allow_http=_flag(options, "store.allow_http"),
    )


def open_store_at(place: StorePlace, options: Mapping[str, str]) -> ObjectStore:
    """The store of a plan, to be read. What the options say counts before what the plan says;
    credentials that neither has are looked for in the environment."""
    from firnmq.tiering.stores import StoreOptions, open_store

    parts = urlsplit(place.url)
    if parts.scheme == "file" and not os.path.isdir(unquote(parts.path)):
        # Opening would create it, on the wrong machine or under a misspelt name.
        raise StoreUnavailable(place.url, "there is no such directory here")
    access_key, secret_key = access_keys(place.url, options, "store")
    return open_store(
        place.url,
        StoreOptions(
            endpoint=options.get("store.endpoint", place.endpoint),
            region=options.get("store.region", place.region),
            access_key=access_key,
            secret_key=secret_key,
            session_token=options.get("store.session_token"),
            allow_http=place.allow_http or _flag(options, "store.allow_http"),
        ),
    )


def access_keys(url: str, options: Mapping[str, str], *parts: str) -> tuple[str | None, str | None]:
    """The access key and the secret key for the store at a URL, from the options that begin with
    the first of the parts that has them. A directory needs none, whatever the environment has."""
    if url.startswith("file:"):
        return None, None
    access_key, secret_key = (
        next((options[each] for part in parts if (each := f"{part}.{name}") in options), None)
        for name in ("access_key", "secret_key")
    )
    half = half_of_keys(access_key, secret_key)
    if half is not None:
        given, missing = half
        raise InvalidArgument(
            f"{parts[-1]}.{given}",
            f"is given, but {parts[-1]}.{missing} is not: set FIRN_TIERING_{missing.upper()}, name "
            "the node's configuration file with --config, or give the option",
        )
    return access_key, secret_key


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgument(name, f"must be true or false, not {text!r}")
    return text == "true"
