"""A transaction that etcd may have made, and of which no answer came."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from firnmq.errors import StorageFailed

grpc = pytest.importorskip("grpc", reason="etcd needs the extra [etcd]")
client = pytest.importorskip("firnmq.meta.etcd.client")


class _Member(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
    """Says that all is well, and breaks off every transaction."""

    def service(self, details: "grpc.HandlerCallDetails") -> "grpc.RpcMethodHandler | None":
        if details.method.endswith(client.STATUS.name):
            status = client.rpc.StatusResponse(version="3.6.16", leader=1)
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: status.SerializeToString()
            )
        if details.method.endswith(client.TXN.name):
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
            )
        return None


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[_Member()])
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
