"""What administrators set about clients: quotas, and users' passwords."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Message,
    String,
)

# DescribeClientQuotas and AlterClientQuotas. A null name is the default of its type.


class QuotaComponent(Message):
    entity_type: String
    match_type: Int8
    match: String | None = None


class DescribeClientQuotasRequest(Message):
    components: Sequence[QuotaComponent]
    strict: Bool = False


class QuotaEntity(Message):
    entity_type: String
    entity_name: String | None = None


class QuotaValue(Message):
    key: String
    value: Float64


class QuotaEntry(Message):
    entity: Sequence[QuotaEntity]
    values: Sequence[QuotaValue]


class DescribeClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: Sequence[QuotaEntry] | None = ()


class QuotaOp(Message):
    key: String
    value: Float64
    remove: Bool = False


class AlteredQuota(Message):
    entity: Sequence[QuotaEntity]
    ops: Sequence[QuotaOp]


class AlterClientQuotasRequest(Message):
    entries: Sequence[AlteredQuota]
    validate_only: Bool = False


class AlteredQuotaResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    entity: Sequence[QuotaEntity]


class AlterClientQuotasResponse(Message):
    throttle_time_ms: Int32 = 0
    entries: Sequence[AlteredQuotaResult]


# DescribeUserScramCredentials and AlterUserScramCredentials.


class ScramUserName(Message):
    name: String


class DescribeUserScramCredentialsRequest(Message):
    """Null or nothing asks for all users."""

    users: Sequence[ScramUserName] | None = None


class ScramCredentialInfo(Message):
    mechanism: Int8
    iterations: Int32


class DescribedScramUser(Message):
    user: String
    error_code: Int16 = 0
    error_message: String | None = None
    credential_infos: Sequence[ScramCredentialInfo]


class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Sequence[DescribedScramUser]


class ScramDeletion(Message):
    name: String
    mechanism: Int8


class ScramUpsertion(Message):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


class AlterUserScramCredentialsRequest(Message):
    deletions: Sequence[ScramDeletion]
    upsertions: Sequence[ScramUpsertion]


class AlteredScramUser(Message):
    user: String
    error_code: Int16 = 0
    error_message: String | None = None


class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[AlteredScramUser]
