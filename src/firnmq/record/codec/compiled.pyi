from firnmq.record.codec.interpreted import *  # noqa: F403
