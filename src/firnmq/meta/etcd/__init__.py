"""The meta store of several machines: etcd, as a MetaStore."""

from firnmq.meta.etcd.client import EtcdSettings
from firnmq.meta.etcd.store import EtcdMetaStore

__all__ = ["EtcdMetaStore", "EtcdSettings"]
