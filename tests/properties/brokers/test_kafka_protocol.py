"""Properties of the Kafka codec: nothing but its own errors, whatever the bytes."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from firnmq.brokers.kafka.protocol import (
    ApiKey,
    MalformedRequest,
    Message,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from firnmq.brokers.kafka.protocol.catalog import REQUESTS
from firnmq.brokers.kafka.protocol.compiler import decode
from firnmq.brokers.kafka.protocol.header import read_request_header
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.versions import is_flexible, is_supported
from tests.unit.brokers.kafka.protocol.oracles import plain
from tests.unit.brokers.kafka.protocol.samples import CASES, Case, Samples, joined

seeds = st.integers(0, 2**32)
all_cases = st.sampled_from(CASES)
requests = st.sampled_from([case for case in CASES if case.message.__name__.endswith("Request")])
hot_keys = [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT]
hot_requests = st.sampled_from(
    [c for c in CASES if c.key in hot_keys and c.message.__name__.endswith("Request")]
)


def request_frame(case: Case, seed: int) -> bytes:
    header = RequestHeader(
        api_key=case.key, api_version=case.version, correlation_id=seed % 2**31, client_id="c"
    )
    return joined(encode_request(header, Samples(seed, length_max=2).message(case)))[4:]


def attempt(frame: bytes) -> tuple[RequestHeader, Message] | str | None:
    """The message, what was wrong, or None for an API that we do not speak."""
    try:
        return decode_request(frame)
    except MalformedRequest as error:
        return str(error)
    except UnsupportedVersion:
        return None


def mutated(frame: bytes, seed: int) -> bytes:
    """The frame with a few bytes changed, taken out, put in or cut off."""
    random = Random(seed)
    out = bytearray(frame)
    for _ in range(random.randint(1, 4)):
        position = random.randrange(len(out) + 1)
        match random.randrange(4):
            case 0 if position < len(out):
                out[position] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
            case 1:
                del out[position : position + random.randint(1, 8)]
            case 2:
                out[position:position] = random.randbytes(random.randint(1, 8))
            case _ if random.random() < 0.2:
                del out[position:]
    return bytes(out)


@given(all_cases, seeds)
def test_a_message_survives_its_frame(case: Case, seed: int) -> None:
    message = Samples(seed).message(case)
    header = RequestHeader(api_key=case.key, api_version=case.version, correlation_id=4)
    if case.message.__name__.endswith("Request"):
        decoded = decode_request(joined(encode_request(header, message))[4:])[1]
    else:
        frame = joined(encode_response(header, message))[4:]
        decoded = decode_response(case.key, case.version, frame)[1]
    assert plain(decoded, case.version) == plain(message, case.version)


@given(st.binary(max_size=300))
def test_random_bytes_give_only_our_errors(data: bytes) -> None:
    attempt(data)


@given(requests, st.binary(max_size=300))
def test_a_good_header_before_random_bytes_gives_only_our_errors(case: Case, data: bytes) -> None:
    tags = b"\0" if case.flexible else b""
    head = case.key.to_bytes(2, "big") + case.version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
    attempt(head + tags + data)


@given(requests, seeds, seeds)
def test_mutated_frames_give_only_our_errors(case: Case, seed: int, mutation: int) -> None:
    attempt(mutated(request_frame(case, seed), mutation))


@given(all_cases, st.binary(max_size=300))
def test_random_responses_give_only_our_errors(case: Case, data: bytes) -> None:
    try:
        decode_response(case.key, case.version, data)
    except MalformedRequest:
        pass


def attempt_by_tables(frame: bytes) -> tuple[RequestHeader, Message] | str | None:
    """As `attempt`, without the hand-written paths."""
    reader = Reader(frame)
    try:
        header = read_request_header(reader)
        key, version = header.api_key, header.api_version
        if not is_supported(key, version):
            return None
        return header, decode(REQUESTS[key], reader, version, flexible=is_flexible(key, version))
    except MalformedRequest as error:
        return str(error)


@given(hot_requests, seeds, seeds)
def test_the_hand_written_paths_agree_with_the_tables_on_damage(
    case: Case, seed: int, mutation: int
) -> None:
    frame = mutated(request_frame(case, seed), mutation)
    assert attempt(frame) == attempt_by_tables(frame)
