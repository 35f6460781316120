"""Real clients over TLS with each mechanism: the right password works, a wrong one says so."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.integration.admin.serving import Served
from tests.integration.kafka import aio
from tests.integration.security.conftest import PASSWORD, USER, Authority

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT_S = 60
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


def rdkafka(
    node: Served, authority: Authority, mechanism: str, password: str = PASSWORD
) -> dict[str, object]:
    return {
        "bootstrap.servers": node.kafka,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


@each_mechanism
def test_confluent_kafka(secured: Served, authority: Authority, mechanism: str) -> None:
    settings = rdkafka(secured, authority, mechanism)
    topic = f"confluent-{mechanism}"
    producer = Producer(settings)
    for number in range(100):
        producer.produce(topic, b"%d" % number + b"x" * 2000)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[bytes] = []
    while len(read) < 100:
        read += [each.value() or b"" for each in consumer.consume(100, 1)]
    consumer.close()
    assert [int(value.rstrip(b"x")) for value in read] == list(range(100))


@each_mechanism
def test_confluent_kafka_with_a_wrong_password(
    secured: Served, authority: Authority, mechanism: str
) -> None:
    errors: list[KafkaError] = []
    settings = {**rdkafka(secured, authority, mechanism, "wrong"), "error_cb": errors.append}
    admin = AdminClient(settings)
    deadline = time.monotonic() + TIMEOUT_S
    while not errors and time.monotonic() < deadline:
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=2)
        admin.poll(0)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


@each_mechanism
def test_kafka_python(secured: Served, authority: Authority, mechanism: str) -> None:
    settings = {
        "bootstrap_servers": secured.kafka,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.certificate),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    topic = f"kafka-python-{mechanism}"
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, b"hello").get(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    assert next(consumer).value == b"hello"
    consumer.close()


@each_mechanism
def test_aiokafka(secured: Served, authority: Authority, mechanism: str) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    settings = {
        "bootstrap_servers": secured.kafka,
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    topic = f"aiokafka-{mechanism}"

    async def go() -> bytes:
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait(topic, b"hello")
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
        await consumer.stop()
        return bytes(record.value)

    assert aio.run(go()) == b"hello"


@each_mechanism
def test_aiokafka_with_a_wrong_password(
    secured: Served, authority: Authority, mechanism: str
) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))

    async def go() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=secured.kafka,
            security_protocol="SASL_SSL",
            ssl_context=context,
            sasl_mechanism=mechanism,
            sasl_plain_username=USER,
            sasl_plain_password="wrong",
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        aio.run(go())
    secured.wait_for_log(lambda line: "authentication_failed" in line and "wrong" in line)


@each_mechanism
@pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
def test_kcat(secured: Served, authority: Authority, mechanism: str) -> None:
    """Distributions still ship one whose librdkafka repeats its nonce in SCRAM."""
    topic = f"kcat-{mechanism}"

    def run(*options: str, stdin: str = "") -> str:
        settings = rdkafka(secured, authority, mechanism)
        given = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
        done = subprocess.run(
            [KCAT or "", *given, *options],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return done.stdout

    run("-P", "-t", topic, stdin="hello\n")
    assert run("-C", "-t", topic, "-o", "beginning", "-e", "-q") == "hello\n"
