"""Records of every shape that the format allows."""

from hypothesis import strategies as st

from firnmq.record import Compression, NewRecord

NAMES = st.text(max_size=12)
CONTENTS = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(NAMES, CONTENTS), max_size=4).map(tuple)
TAGS = st.lists(st.text(max_size=8), max_size=3).map(tuple)
TIMES = st.integers(0, 2**62 - 1)

NEW_RECORDS = st.builds(
    NewRecord,
    value=st.none() | st.binary(max_size=300),
    key=CONTENTS,
    headers=HEADERS,
    tags=TAGS,
    timestamp_ms=st.none() | TIMES,
    expire_at_ms=st.none() | st.integers(0, 10**18 - 1),
)
BATCHES = st.lists(NEW_RECORDS, min_size=1, max_size=20)
CODECS = st.sampled_from(list(Compression))
