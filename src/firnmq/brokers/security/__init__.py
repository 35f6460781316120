"""Who a client is: users with salted credentials, SCRAM, throttled logins, TLS."""

from firnmq.brokers.security.authenticator import (
    MECHANISMS,
    PLAIN,
    SCRAM_DIGESTS,
    Authenticator,
    TooManyFailures,
)
from firnmq.brokers.security.credentials import ScramCredential
from firnmq.brokers.security.scram import AuthenticationFailed
from firnmq.brokers.security.users import UserNotFound, UserStore, check_user_name

__all__ = [
    "MECHANISMS",
    "PLAIN",
    "SCRAM_DIGESTS",
    "AuthenticationFailed",
    "Authenticator",
    "ScramCredential",
    "TooManyFailures",
    "UserNotFound",
    "UserStore",
    "check_user_name",
]
