"""Which URLs and options are stores, and what is said about the others."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from firnmq.errors import InvalidArgument, StorePackageMissing
from firnmq.tiering.stores import StoreOptions, open_store
from firnmq.tiering.stores.s3_uploads import S3Access


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


def client_of(url: str, **options: object) -> object:
    return open_store(url, StoreOptions(**options))._client  # type: ignore[arg-type,attr-defined]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("bucket/prefix", "file://"),
        ("ftp://host/x", "s3://"),
        ("file://", "file:///path"),
        ("file:///", "file:///path"),
        ("file://host/share", "file:///path"),
        ("s3://", "names no bucket"),
        ("gs:///prefix", "names no bucket"),
        ("s3://key:secret@bucket/x", "credentials"),
        ("s3://bucket/x?region=y", "query"),
        ("s3://bucket/a//b", "part ''"),
        ("s3://bucket/.hidden", "dot"),
    ],
)
def test_urls_that_are_no_store(url: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        open_store(url)
    assert says in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"access_key": "a"}, "secret_key"),
        ({"secret_key": "s"}, "access_key"),
        ({"endpoint": "host:9000"}, "http(s)://"),
        ({"endpoint": "http://host:9000"}, "allow_http"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"connect_timeout_ms": -1}, "connect_timeout_ms"),
        ({"retry_timeout_ms": 0}, "retry_timeout_ms"),
        ({"retries": -1}, "retries"),
        ({"parts_in_flight": 0}, "parts_in_flight"),
        ({"part_bytes": 1024}, "part_bytes"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidArgument, match=names.replace("(", r"\(").replace(")", r"\)")):
        StoreOptions(**options)  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    options = StoreOptions(access_key="me", secret_key="hush", session_token="also-hush")
    assert "hush" not in repr(options)
    assert "hush" not in repr(S3Access.of("bucket", options))


def test_a_directory_is_made(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space")
    assert (tmp_path / "with space").is_dir()
    assert store.url == f"file://{tmp_path}/with%20space"


def test_s3_options_reach_the_client() -> None:
    client = client_of(
        "s3://bucket/some/prefix/",
        endpoint="https://minio.example",
        region="eu-north-1",
        access_key="key",
        secret_key="secret",
        session_token="token",
    )
    config = client.config  # type: ignore[attr-defined]
    assert config["bucket"] == "bucket"
    assert config["endpoint"] == "https://minio.example"
    assert config["region"] == "eu-north-1"
    assert (config["access_key_id"], config["secret_access_key"]) == ("key", "secret")
    assert config["session_token"] == "token"
    assert client.prefix == "some/prefix"  # type: ignore[attr-defined]


def test_s3_takes_the_usual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    access = S3Access.of("bucket", StoreOptions())
    assert (access.key, access.secret, access.token) == ("env-key", "env-secret", "env-token")
    assert access.region == "eu-west-3"
    # The token belongs to the keys of the environment, not to others.
    own = S3Access.of("bucket", StoreOptions(access_key="own", secret_key="own-secret"))
    assert (own.key, own.token) == ("own", None)


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket/prefix", "az://container/prefix"])
def test_time_outs_and_retries_are_always_set(url: str) -> None:
    client = client_of(url, **({} if url[0] != "a" else {"access_key": "a", "secret_key": "aGk="}))
    assert client.client_options["timeout"] == "20s"  # type: ignore[attr-defined]
    assert client.client_options["connect_timeout"] == "5s"  # type: ignore[attr-defined]
    assert client.retry_config["max_retries"] == 3  # type: ignore[attr-defined]
    assert client.retry_config["retry_timeout"].total_seconds() == 30  # type: ignore[attr-defined]


def test_google_options_reach_the_client(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    account = {"private_key": key.decode(), "private_key_id": "1", "client_email": "a@b.example"}
    path.write_text(json.dumps(account))
    client = client_of("gs://bucket/p", credentials_file=str(path))
    assert client.config["service_account"] == str(path)  # type: ignore[attr-defined]
    assert client.prefix == "p"  # type: ignore[attr-defined]


def test_a_credentials_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"gs://bucket.*key\.json"):
        client_of("gs://bucket", credentials_file=str(tmp_path / "key.json"))


def test_azure_options_reach_the_client() -> None:
    client = client_of("az://container/p", access_key="account", secret_key="aGVsbG8=")
    config = client.config  # type: ignore[attr-defined]
    assert config["account_name"] == "account"
    assert config["account_key"] == "aGVsbG8="
    assert config["container_name"] == "container"


def test_azure_without_an_account_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidArgument, match=r"az://container.*[Aa]ccount"):
        open_store("az://container")


@pytest.mark.parametrize(
    ("url", "options", "name"),
    [
        ("gs://bucket", {"region": "x"}, "region"),
        ("gs://bucket", {"access_key": "a", "secret_key": "s"}, "access_key"),
        ("az://container", {"credentials_file": "x"}, "credentials_file"),
        ("az://container", {"session_token": "x"}, "session_token"),
    ],
)
def test_options_of_another_kind_of_store_are_refused(
    url: str, options: dict[str, str], name: str
) -> None:
    with pytest.raises(InvalidArgument, match=name):
        open_store(url, StoreOptions(**options))  # type: ignore[arg-type]


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: object, **more: object) -> object:
        if name.partition(".")[0] in ("obstore", "hdfs_native"):
            raise ImportError(name)
        return real(name, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StorePackageMissing, match=r"pip install 'firnmq\[s3\]'"):
        open_store("s3://bucket")


_PRIORITIES = """
import os, sys
from firnmq.errors import StoreError
from firnmq.tiering.stores import StoreOptions, open_store

store = open_store(
    "s3://bucket",
    StoreOptions(
        endpoint="http://127.0.0.1:1", allow_http=True, region="r", access_key="a", secret_key="s",
        retries=0, timeout_ms=5_000,
    ),
)
for _ in range(2):
    try:
        store.head("key")
    except StoreError:
        pass
own = {str(os.getpid())}
print(os.getpriority(os.PRIO_PROCESS, 0))
for thread in set(os.listdir("/proc/self/task")) - own:
    print(os.getpriority(os.PRIO_PROCESS, int(thread)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
@pytest.mark.parametrize(("more", "less"), [(0, 10), (5, 10), (15, 4)])
def test_obstores_threads_let_others_go_first(more: int, less: int) -> None:
    """The first number is the process's own, the others are its threads'."""
    output = subprocess.run(
        ["nice", "-n", str(more), sys.executable, "-c", _PRIORITIES],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    own, *threads = map(int, output.split())
    if own != more:
        pytest.skip("this process has another priority itself")
    assert threads
    assert set(threads) == {own + less}


_FORK = """
import os
from firnmq.errors import StoreError
from firnmq.tiering.stores import StoreOptions, open_store

def use():
    options = StoreOptions(
        endpoint="http://127.0.0.1:1", allow_http=True, region="r", access_key="a", secret_key="s",
        retries=0, timeout_ms=5_000,
    )
    try:
        open_store("s3://bucket", options).head("key")
    except StoreError as error:
        return str(error)

if USES_FIRST:
    use()
else:
    open_store("s3://bucket", StoreOptions(region="r"))
child = os.fork()
if not child:
    print(use(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("uses_first", "says"), [(True, "spawn"), (False, "cannot be reached")])
def test_a_process_forked_from_one_that_used_a_store(uses_first: bool, says: str) -> None:
    """Its own stores would wait for ever for threads that it does not have; it is told so."""
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"USES_FIRST = {uses_first}" + _FORK],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert says in output
