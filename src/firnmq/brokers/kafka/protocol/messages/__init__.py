"""The messages of the protocol, by area; each class is the table of its fields.

Names of messages and fields are those of the public protocol description as of Kafka 4.3, in
Python's spelling. Fields that only exist in versions below those we speak are left out.
"""
