"""A REST catalog client with bounded waits and typed errors.

PyIceberg's own client waits for a response for ever, and some of its errors are those of the HTTP
library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests.exceptions import ConnectionError as NotConnected
from requests.exceptions import RequestException, SSLError, Timeout

from firnmq.lake.tables.catalogs.catalog import CatalogFailed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from requests import PreparedRequest, Response, Session

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
"""A commit may be slow; after this time the table is read to see whether it was applied."""

_PASSING: Final = (
    *(CommitStateUnknownException, ServerError, ServiceUnavailableError, TooManyRequestsError),
    *(NotConnected, Timeout),
)
_DENIED: Final = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_TLS: Final = re.compile(r"\[SSL: \w+\] ([^('\"]+)")
_TEXT_CHARS_MAX: Final = 300


class PunctualRestCatalog(RestCatalog):
    """PyIceberg's client, whose requests end."""

    def _config_headers(self, session: Session) -> None:
        """The first thing that is done to a session, before it asks for a token."""
        super()._config_headers(session)
        send = session.send

        def sent(request: PreparedRequest, **settings: Any) -> Response:
            settings["timeout"] = settings.get("timeout") or (CONNECT_S, ANSWER_S)
            if session.verify is not True:
                # The catalog's own setting overrides REQUESTS_CA_BUNDLE, which is for all requests.
                settings["verify"] = session.verify
            return send(request, **settings)

        session.send = sent  # type: ignore[method-assign]


def create_at(catalog: Catalog, wanted: dict[str, Any], choose: Callable[[str], str]) -> None:
    """Makes a table where `choose` says, which is told where the catalog would put it: that is
    often the same place again when the table is renamed. A catalog that chooses locations itself
    avoids that."""
    try:
        staged = catalog.create_table_transaction(**wanted)
    except (BadRequestError, NotImplementedError):
        catalog.create_table(**wanted)
        return
    try:
        catalog.create_table(**wanted, location=choose(staged.table_metadata.location))
    except (BadRequestError, ForbiddenError):
        catalog.create_table(**wanted)


@contextmanager
def answered(catalog: str) -> Iterator[None]:
    """Whatever is no answer to a question about tables is CatalogFailed."""
    try:
        yield
    except (RESTError, RequestException, ValidationError, NotImplementedError) as error:
        is_passing = isinstance(error, _PASSING) and not isinstance(error, SSLError)
        raise CatalogFailed(catalog, _reason(error), is_passing=is_passing) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:_TEXT_CHARS_MAX]
    match error:
        case Timeout():
            return f"does not answer within {ANSWER_S:.0f} s"
        case SSLError():
            said = _TLS.search(str(error))
            return (
                f"no secure connection: {said[1].strip() if said else text}; catalog.ssl.cabundle "
                "names whom to trust, catalog.ssl.client.cert and .key who asks"
            )
        case NotConnected():
            found = _ERRNO.findall(str(error))
            return f"cannot be reached: {found[-1].strip() if found else text}"
        case ValidationError():
            return f"answers something that is not for a catalog: {error.errors()[0]['msg']}"
        case NotImplementedError():
            return f"cannot do what is needed: {text}"
        case _ if isinstance(error, _DENIED):
            return (
                f"refuses access: {text}; the options catalog.token, catalog.credential "
                "(id:secret) or catalog.auth.* say who asks"
            )
        case _ if isinstance(error, _PASSING):
            return f"is in trouble: {text}"
        case _:
            return f"refuses: {text}"
