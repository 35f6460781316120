"""Members that break off transactions, or that have a version which loses data."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from firnmq.errors import StorageFailed
from firnmq.meta.etcd_versions import EtcdRefused, checked_version

grpc = pytest.importorskip("grpc", reason="etcd needs the extra [etcd]")
client = pytest.importorskip("firnmq.meta.etcd.client")


class _Member(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
    """Says that all is well, and breaks off every transaction."""

    version = "3.6.16"

    def service(self, details: "grpc.HandlerCallDetails") -> "grpc.RpcMethodHandler | None":
        if details.method.endswith(client.STATUS.name):
            status = client.rpc.StatusResponse(version=self.version, leader=1)
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: status.SerializeToString()
            )
        if details.method.endswith(client.TXN.name):
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
            )
        return None


@pytest.fixture
def member() -> _Member:
    return _Member()


@pytest.fixture
def endpoint(member: _Member) -> Iterator[str]:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[member])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def test_a_transaction_without_an_answer_may_have_happened(endpoint: str) -> None:
    asking = client.EtcdClient(client.EtcdSettings(endpoints=(endpoint,), call_s=5.0))
    with pytest.raises(StorageFailed) as caught:
        asking.send(client.TXN, client.rpc.TxnRequest())
    assert caught.value.is_outcome_unknown
    asking.close()


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2", "3.4.3", "2.3.8", "strange"])
def test_a_version_that_loses_data_is_refused(member: _Member, endpoint: str, version: str) -> None:
    member.version = version
    asking = client.EtcdClient(client.EtcdSettings(endpoints=(endpoint,)))
    with pytest.raises(EtcdRefused, match=version):
        asking.ask(client.RANGE, client.rpc.RangeRequest(key=b"a"))
    asking.close()


@pytest.mark.parametrize("version", ["3.4.23", "3.5.3", "3.6.16", "3.7.0-alpha.0"])
def test_other_versions_are_taken(version: str) -> None:
    assert checked_version(version, "here") >= (3, 4)
