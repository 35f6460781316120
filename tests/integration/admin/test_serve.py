"""`firn serve`: what it says, how it is configured, what it refuses, how it logs and ends."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.integration.admin.serving import TIMEOUT_S, Served, firn


def test_the_first_lines_say_where_everything_is(node: Served) -> None:
    assert list(node.said) == ["kafka", "admin", "data", "durable", "try"]
    assert node.kafka.startswith("127.0.0.1:")
    assert node.url.startswith("http://127.0.0.1:")
    assert Path(node.said["data"]).is_dir()
    assert "fsync" in node.said["durable"]


def test_the_printed_commands_work_as_printed(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    try:
        assert served.process.stdout is not None
        commands = []
        for line in served.process.stdout:
            if line.startswith("stop "):
                break
            commands.append(line.strip())
        assert len(commands) >= 3
        outputs = []
        for command in commands:
            if "kcat" in command and shutil.which("kcat") is None:
                continue
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            outputs.append(done.stdout)
        assert any("ann  hello" in output for output in outputs)
    finally:
        assert served.stop() == 0


@pytest.mark.parametrize(
    "number, code",
    [pytest.param(signal.SIGINT, 130, id="Ctrl-C"), pytest.param(signal.SIGTERM, 0, id="TERM")],
)
def test_the_last_line_says_what_was_done(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    served = Served(tmp_path / "data")
    served.process.send_signal(number)
    said, _ = served.process.communicate(timeout=TIMEOUT_S)
    assert served.process.returncode == code
    stopping, stopped = said.splitlines()[-2:]
    assert stopping.startswith("stopping ")
    assert stopped.startswith("stopped ")
    assert str(tmp_path / "data") in stopped


def test_a_file_then_variables_then_options(tmp_path: Path) -> None:
    file = tmp_path / "firn.toml"
    file.write_text(
        """
        [kafka]
        cluster_id = "from-file"
        node_id = 5
        auto_create_shards = 2
        [admin]
        port = 1
        [topic_defaults]
        durability = "os"
        segment.bytes = 65536
        "retention.ms" = 1000
        [log]
        json = true
        """
    )
    served = Served(
        tmp_path / "data",
        *("--config", str(file), "--admin-port", "0"),
        settings={"FIRN_KAFKA_NODE_ID": "6", "FIRN_TOPIC_DEFAULTS_RETENTION_MS": "2000"},
    )
    try:
        status = served.get("/v1/node")
        assert (status["cluster_id"], status["node_id"]) == ("from-file", 6)
        assert "written" in served.said["durable"]
        producer = Producer({"bootstrap.servers": served.kafka})
        producer.produce("made", b"x")
        assert producer.flush(60) == 0
        made = served.get("/v1/topics/made")
        assert made["shard_count"] == 2
        options = made["options"]
        assert (options["segment.bytes"], options["retention.ms"]) == ("65536", "2000")
        assert options["durability"] == "os"
        served.call("DELETE", "/v1/topics/made")
        line = served.wait_for_log(lambda line: "admin_change" in line)
        event = json.loads(line)
        assert event["event"] == "admin_change"
        assert (event["level"], event["component"]) == ("info", "admin")
        assert (event["method"], event["path"]) == ("DELETE", "/v1/topics/made")
    finally:
        assert served.stop() == 0


@pytest.mark.parametrize(
    ("args", "variables", "says"),
    [
        (["--host", "0.0.0.0"], {}, "--allow-insecure"),
        (["--admin-host", "0.0.0.0"], {}, "--allow-insecure"),
        (["--port", "70000"], {}, "port"),
        ([], {"FIRN_KAFKA_PORT": "nine"}, "FIRN_KAFKA_PORT"),
        ([], {"FIRN_SECURITY_SASL_MECHANISMS": "OTHER"}, "OTHER"),
        ([], {"FIRN_SECURITY_TLS_KEY": "x"}, "tls_certificate"),
        ([], {"FIRN_SECURITY_TLS_CERTIFICATE": "/nonexistent.pem"}, "/nonexistent.pem"),
        ([], {"FIRN_ADMIN_TOKEN_FILE": "/nonexistent"}, "/nonexistent"),
        ([], {"FIRN_LOG_LEVEL": "loud"}, "loud"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(
    tmp_path: Path, args: list[str], variables: dict[str, str], says: str
) -> None:
    data = tmp_path / "data"
    done = firn(
        "serve", "--data", str(data), "--port", "0", "--admin-port", "0", *args, **variables
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not data.exists()


def test_unknown_names_in_the_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "firn.toml"
    for text, name in (("[kafka]\nprot = 1\n", "kafka.prot"), ("[kafkas]\n", "kafkas")):
        file.write_text(text)
        done = firn("serve", "--config", str(file), "--data", str(tmp_path / "data"))
        assert done.returncode == 2
        assert name in done.stderr


def test_listening_beyond_this_machine_warns(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", "--host", "0.0.0.0", "--allow-insecure", "--no-admin")
    try:
        assert "admin" not in served.said
        served.wait_for_log(lambda line: line.startswith("warning: ") and "0.0.0.0" in line)
    finally:
        assert served.stop() == 0


def test_a_taken_port_is_named(node: Served, tmp_path: Path) -> None:
    taken = node.url.rpartition(":")[2]
    done = firn("serve", "--data", str(tmp_path), "--port", "0", "--admin-port", taken)
    assert done.returncode == 1
    assert f"127.0.0.1:{taken}" in done.stderr
    assert "admin.port" in done.stderr
    taken = node.kafka.rpartition(":")[2]
    done = firn("serve", "--data", str(tmp_path), "--port", taken, "--admin-port", "0")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{taken}: another program listens there" in done.stderr
    assert "kafka.port" in done.stderr


def test_a_check_names_taken_ports_and_wrong_settings(node: Served, tmp_path: Path) -> None:
    data = tmp_path / "checked"
    kafka, admin = (address.rpartition(":")[2] for address in (node.kafka, node.url))
    check = ("serve", "--check", "--data", str(data))
    for args, names in (
        (("--port", kafka, "--admin-port", "0"), [f"127.0.0.1:{kafka}"]),
        (("--port", "0", "--admin-port", admin), [f"127.0.0.1:{admin}"]),
        (("--port", kafka, "--admin-port", admin), [f"127.0.0.1:{kafka}", f"127.0.0.1:{admin}"]),
        (("--port", kafka, "--admin-port", admin, "--no-admin"), [f"127.0.0.1:{kafka}"]),
        (("--host", "0.0.0.0"), ["--allow-insecure"]),
    ):
        done = firn(*check, *args)
        assert done.returncode == (2 if "--host" in args else 1)
        assert all(name in done.stderr for name in names), done.stderr
    well = firn(*check, "--port", "0")
    assert (well.returncode, "checked" in well.stdout) == (0, True), well.stderr
    assert not data.exists()


def test_two_taken_ports_are_both_named(node: Served, tmp_path: Path) -> None:
    kafka, admin = (address.rpartition(":")[2] for address in (node.kafka, node.url))
    done = firn("serve", "--data", str(tmp_path), "--port", kafka, "--admin-port", admin)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    for port, setting in ((kafka, "kafka.port"), (admin, "admin.port")):
        assert f"cannot listen on 127.0.0.1:{port}: another program listens there" in error
        assert setting in error
    assert "--port N --admin-port N" in hint
    assert "FIRN_KAFKA_PORT" in hint


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = firn("serve", "--data", str(tmp_path / "data"), "--config", str(tmp_path / "firn.toml"))
    assert done.returncode == 2
    assert "there is no such configuration file; check --config" in done.stderr


def test_a_misspelt_variable_is_told_of(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", settings={"FIRN_KAFKA_PROT": "1"})
    try:
        served.wait_for_log(lambda line: "did you mean FIRN_KAFKA_PORT?" in line)
    finally:
        assert served.stop() == 0


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    done = firn("topic", "create", "x", "--data", "/proc/firn-data")
    assert done.returncode == 1
    assert done.stderr.startswith("error: /proc/firn-data: ")
    assert "Errno" not in done.stderr


def test_a_token_opens_what_is_closed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame\n")
    served = Served(tmp_path / "data", settings={"FIRN_ADMIN_TOKEN_FILE": str(token)})
    try:
        none = {"Authorization": ""}
        assert served.call("GET", "/v1/topics", headers=none).status == 401
        assert served.call("GET", "/metrics", headers=none).status == 401
        assert served.call("GET", "/health/ready", headers=none).status == 200
        headers = {"Authorization": "Bearer sesame"}
        assert served.call("GET", "/v1/topics", headers=headers).status == 200
        refused = firn("topic", "list", FIRN_NODE=served.url)
        assert (refused.returncode, "token" in refused.stderr) == (1, True)
        allowed = firn("topic", "list", FIRN_NODE=served.url, FIRN_ADMIN_TOKEN_FILE=str(token))
        assert allowed.returncode == 0
    finally:
        assert served.stop() == 0


def test_with_sasl_users_are_changed_by_those_who_may_read_the_data(tmp_path: Path) -> None:
    """1. A node with SASL makes a token, for its own user only, and says where. 2. Requests without
    it change nothing. 3. `firn` finds it. 4. The next start has the same one."""
    data, settings = tmp_path / "data", {"FIRN_SECURITY_SASL_MECHANISMS": "PLAIN"}
    path = data / "admin.token"
    served = Served(data, settings=settings)
    try:
        served.wait_for_log(lambda line: "admin_token" in line and str(path) in line)
        assert served.said["token"] == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        none = {"Authorization": ""}
        new = {"password": "x"}
        assert served.call("PUT", "/v1/users/eve", new, headers=none).status == 401
        assert served.call("GET", "/v1/users").document == []
        add = ("user", "add", "ann", "--password-file", "-")
        added = firn(*add, stdin="secret\n", FIRN_NODE=served.url, FIRN_DATA=str(data))
        assert added.returncode == 0, added.stderr
        elsewhere = firn("user", "list", FIRN_NODE=served.url, FIRN_DATA=str(tmp_path))
        assert (elsewhere.returncode, "token" in elsewhere.stderr) == (1, True)
    finally:
        assert served.stop() == 0
    before = path.read_text()
    served = Served(data, settings=settings)
    try:
        assert path.read_text() == before
        assert served.call("GET", "/v1/users").document == [{"user": "ann"}]
    finally:
        assert served.stop() == 0


def test_files_of_a_node_are_for_its_user_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    added = firn(
        *("user", "add", "ann", "--password-file", "-", "--data", str(data)), stdin="secret\n"
    )
    assert added.returncode == 0, added.stderr
    served = Served(data, settings={"FIRN_SECURITY_SASL_MECHANISMS": "PLAIN"})
    try:
        path = "/v1/topics/t/records"
        assert served.call("POST", "/v1/topics", {"topic": "t"}).status == 200
        assert served.call("POST", path, {"records": [{"value": "x"}]}).status == 200
        open_to_others = [
            each for each in (data, *data.rglob("*")) if stat.S_IMODE(each.stat().st_mode) & 0o077
        ]
        assert open_to_others == []
    finally:
        assert served.stop() == 0


def test_stopping_answers_what_has_begun_and_frees_the_directory(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    host, _, port = served.kafka.rpartition(":")
    idle = socket.create_connection((host, int(port)), 10)
    AdminClient({"bootstrap.servers": served.kafka}).list_topics(timeout=60)
    assert served.stop() == 0
    assert idle.recv(1) == b""
    idle.close()
    again = Served(tmp_path / "data")
    assert again.stop() == 0


def test_what_serves_http_is_not_loaded_before_kafka_clients_can_connect() -> None:
    """A node is ready in a third of a second because most of what it can do is loaded later."""
    code = (
        "import sys; import firnmq.server.node, firnmq.server.settings, firnmq.server.logs; "
        "later = ('starlette', 'uvicorn', 'prometheus_client', 'pyarrow', 'rich'); "
        "print([name for name in later if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert done.stdout == "[]\n"
