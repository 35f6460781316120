"""Who a Kafka client is: users with salted credentials, SASL PLAIN and SCRAM-SHA-256, TLS."""

from firnmq.brokers.kafka.security.credentials import ScramCredential
from firnmq.brokers.kafka.security.sasl import MECHANISMS, Authenticator, SaslSession
from firnmq.brokers.kafka.security.scram import AuthenticationFailed
from firnmq.brokers.kafka.security.users import UserNotFound, UserStore, check_user_name

__all__ = [
    "MECHANISMS",
    "AuthenticationFailed",
    "Authenticator",
    "SaslSession",
    "ScramCredential",
    "UserNotFound",
    "UserStore",
    "check_user_name",
]
