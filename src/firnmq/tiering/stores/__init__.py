"""Object stores by URL: a directory, S3 and what speaks like it, Google, Azure, HDFS.

`open_store` is the way in; `ObjectStore` says what one does. A library that talks to a store is
loaded when a store of its kind is opened, and is used in one module only.
"""

from firnmq.config import StoreOptions
from firnmq.tiering.stores.api import ObjectInfo, ObjectStore
from firnmq.tiering.stores.opening import open_store

__all__ = ["ObjectInfo", "ObjectStore", "StoreOptions", "open_store"]
