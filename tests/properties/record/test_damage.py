"""A small share of what the soak does, on every run of the tests."""

from types import ModuleType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firnmq.record import Selection
from tests.soak.fuzz_codec import answers, fuzz

EVERY_FORM = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_damaged_batches_are_answered_alike_by_every_form() -> None:
    decoded_count = fuzz(3_000, seed=20_240_229)
    # If all or nothing decoded, the damage would not reach the code it is meant for.
    assert 300 < decoded_count < 2_000


@EVERY_FORM
@given(noise=st.binary(max_size=200))
def test_noise_is_answered(codec: ModuleType, noise: bytes) -> None:
    answers(codec, noise, Selection())
    answers(codec, bytes(8) + (len(noise) + 4).to_bytes(4, "big") + noise, Selection())
