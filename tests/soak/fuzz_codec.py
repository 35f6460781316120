"""Damaged batches by the million: `python -m tests.soak.fuzz_codec --count N --seed S`.

Every form of the codec is given the same damaged bytes. Each must answer with a result or with
one of our errors, and all must give the same answer.
"""

import argparse
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from crc32c import crc32c

from firnmq.errors import Corruption, InvalidRecord
from firnmq.record import Compression, NewRecord, Selection, compress, encode
from firnmq.record.batch import CRC_START, HEADER_BYTES
from tests.unit.record.codec_forms import forms

_DECOMPRESSED_MAX = 64 * 1024

_SELECTIONS = (
    Selection(),
    Selection(start_offset=3, end_offset=7, max_bytes=100, now_ms=1_000, ttl_ms=50),
    Selection(key=b"k1", holes={2, 3}),
    Selection(tag=b"t", dead_keys={b"k2": 5}, max_records=2, min_timestamp=10),
    Selection(columns=frozenset({"tags"}), include_control=True),
)


def random_records(rng: random.Random) -> list[NewRecord]:
    def some_bytes() -> bytes | None:
        return rng.choice((None, b"", b"k%d" % rng.randrange(4), rng.randbytes(rng.randrange(90))))

    return [
        NewRecord(
            value=some_bytes(),
            key=some_bytes(),
            headers=tuple(
                (rng.choice(("h", "tag", "expire-at", "ü")), rng.choice((None, b"12", b"t", b"")))
                for _ in range(rng.randrange(3))
            ),
            tags=rng.choice(((), (), ("t",), ("a", "b"))),
            timestamp_ms=rng.randrange(2_000),
            expire_at_ms=rng.choice((None, rng.randrange(2_000))),
        )
        for _ in range(rng.randrange(1, 12))
    ]


def mutated(rng: random.Random, data: bytes, start: int) -> bytes:
    """`data` with one to four changes from `start` on: flips, truncations, insertions."""
    output = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(start, len(output) + 1)
        match rng.randrange(7):
            case 0 | 1 if at < len(output):
                output[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(output):
                output[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 3:
                del output[at : at + rng.randrange(1, 9)]
            case 4:
                output[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 5:
                output[at : at + 5] = b"\xff" * rng.randrange(1, 12)
            case _:
                del output[at:]
    return bytes(output)


def damaged_batch(rng: random.Random) -> bytes:
    """A batch damaged in its header, in its stored bytes or in its records."""
    codec = rng.choice((Compression.NONE, Compression.NONE, *Compression))
    plain = bytes(encode(random_records(rng), now_ms=7, base_offset=rng.choice((0, 1, 2**61))))
    header, payload = plain[:HEADER_BYTES], plain[HEADER_BYTES:]
    kind = rng.randrange(4)
    if kind == 0:
        payload = mutated(rng, payload, 0)
    packed = bytes(compress(codec, payload))
    if kind == 1 and packed:
        packed = mutated(rng, packed, 0)
    header = header[:21] + int(codec).to_bytes(2, "big") + header[23:]
    batch = header + packed
    if kind == 2:
        batch = mutated(rng, batch, 0)
    if kind != 3 and rng.random() < 0.9 and len(batch) >= HEADER_BYTES:
        batch = batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
    if kind == 3:
        # Only numbers of the header are changed, which is where sizes are promised.
        at = rng.randrange(21, HEADER_BYTES)
        batch = batch[:at] + rng.randbytes(1) + batch[at + 1 :]
        batch = batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:]
    if rng.random() < 0.95 and len(batch) >= HEADER_BYTES:
        crc = crc32c(batch[CRC_START:])
        batch = batch[: CRC_START - 4] + crc.to_bytes(4, "big") + batch[CRC_START:]
    return batch


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, or which of our errors; any other exception gets through."""
    try:
        return call()
    except (Corruption, InvalidRecord) as refusal:
        return type(refusal).__name__, str(refusal)


def answers(codec: ModuleType, batch: bytes, selection: Selection) -> list[Any]:
    """All that a form of the codec has to say about a batch."""

    def walked() -> Any:
        found = codec.walk(batch + batch, verify=len(batch) % 2 == 0)
        return found.valid_end, found.reason, found.needed_bytes, list(map(repr, found.headers))

    def decoded(source: str) -> Any:
        columns = codec.decode(
            [batch], selection, source=source, max_decompressed=_DECOMPRESSED_MAX
        )
        return columns.records(), columns.next_offset, columns.is_limited, columns.encoded_bytes

    def recoded() -> Any:
        columns = codec.decode([batch], max_decompressed=_DECOMPRESSED_MAX)
        return bytes(codec.encode_columns(columns, base_offset=0)) if len(columns) else b""

    return [
        answer(walked),
        answer(lambda: decoded("disk")),
        answer(lambda: decoded("client")),
        answer(recoded),
        answer(lambda: tuple(codec.collect(batch, max_decompressed=_DECOMPRESSED_MAX))),
        answer(lambda: codec.validate_header(batch)),
        answer(lambda: codec.validate(batch, max_decompressed=_DECOMPRESSED_MAX)),
    ]


def fuzz(count: int, seed: int, codecs: list[ModuleType] | None = None) -> int:
    """Try `count` damaged batches; how many of them decoded after all. A failure says its seed."""
    codecs = codecs or forms()
    decoded_count = 0
    for number in range(count):
        # Each batch has a seed of its own, so that one can be tried again alone.
        rng = random.Random(f"{seed}/{number}")
        batch = damaged_batch(rng)
        selection = rng.choice(_SELECTIONS)
        try:
            found = [answers(codec, batch, selection) for codec in codecs]
            assert all(other == found[0] for other in found), f"the forms disagree: {found}"
        except BaseException as error:
            error.add_note(f"seed {seed}, batch number {number}: {batch.hex()}")
            raise
        decoded_count += isinstance(found[0][1][0], list)
    return decoded_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    names = ", ".join("compiled" if codec.IS_COMPILED else "interpreted" for codec in forms())
    print(f"seed {options.seed}, {options.count:,} batches, forms: {names}", flush=True)
    decoded_count = fuzz(options.count, options.seed)
    print(f"all answered as they should, {decoded_count:,} decoded after all")


if __name__ == "__main__":
    main()
