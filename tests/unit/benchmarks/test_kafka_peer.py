"""The peer of the Kafka benchmarks: what it is made of, what is read about it, when it is skipped.

No server is started here and nothing is fetched.
"""

import io
import os
import shutil
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import kafka_peer
from benchmarks.harness import Measured, Registry, Run, Skipped, run_benchmarks
from benchmarks.kafka_peer import (
    KAFKA_VERSION,
    ApacheKafka,
    anonymous_bytes,
    cpu_seconds,
    fetch_kafka,
    free_port,
    parse_anonymous_bytes,
    parse_cpu_ticks,
    peak_anonymous_bytes,
    project_file,
    server_properties,
)


def no_programs(name: str) -> str | None:
    return None


class TestSkipping:
    def test_without_java_the_peer_is_skipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "which", no_programs)
        with pytest.raises(Skipped, match="no Apache Kafka"):
            ApacheKafka(tmp_path)

    def test_without_maven_nothing_is_fetched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "which", no_programs)
        with pytest.raises(Skipped, match="no Apache Kafka"):
            fetch_kafka(tmp_path / "cache")
        assert not (tmp_path / "cache").exists()

    def test_what_was_fetched_before_needs_no_maven(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "which", no_programs)
        (tmp_path / KAFKA_VERSION).mkdir()
        assert fetch_kafka(tmp_path) == tmp_path / KAFKA_VERSION

    @pytest.mark.parametrize("work", ["true", f"mkdir cache/{KAFKA_VERSION}.new"])
    def test_a_failed_fetch_is_skipped_and_leaves_nothing_that_looks_complete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
    ) -> None:
        maven = tmp_path / "mvn"
        maven.write_text(f"#!/bin/sh\ncd {tmp_path} && {work}; exit 1\n")
        maven.chmod(0o755)
        monkeypatch.setattr(shutil, "which", lambda name: str(maven))
        with pytest.raises(Skipped):
            fetch_kafka(tmp_path / "cache")
        assert not (tmp_path / "cache" / KAFKA_VERSION).exists()

    def test_a_skipped_benchmark_is_reported_and_is_no_failure(self, tmp_path: Path) -> None:
        registry = Registry()

        @registry.benchmark("skips", unit="s")
        def skips(run: Run) -> Measured:
            raise Skipped("no Apache Kafka")

        @registry.benchmark("runs", unit="s")
        def runs(run: Run) -> Measured:
            return Measured(value=1.0)

        output, results = io.StringIO(), tmp_path / "results.json"
        results.write_text('{"skips": {"value": 7}}')
        code = run_benchmarks(
            registry.select([]), results_path=results, scratch_root=tmp_path, output=output
        )
        assert code == 0
        assert "skipped: no Apache Kafka" in output.getvalue().splitlines()[0]
        assert "1 measured" in output.getvalue()
        assert '"value": 7' in results.read_text(), "an earlier figure is kept"


class TestFiles:
    def test_the_project_names_the_broker_at_its_version(self) -> None:
        project = ElementTree.fromstring(project_file())
        wanted = {
            each.findtext("artifactId"): each.findtext("version")
            for each in project.iter("dependency")
        }
        assert wanted["kafka_2.13"] == KAFKA_VERSION
        assert wanted["kafka-tools"] == KAFKA_VERSION

    def test_the_properties_name_directory_and_ports(self, tmp_path: Path) -> None:
        lines = server_properties(tmp_path, 1234, 5678).splitlines()
        assert f"log.dirs={tmp_path}" in lines
        assert "listeners=PLAINTEXT://127.0.0.1:1234,CONTROLLER://127.0.0.1:5678" in lines
        assert "controller.quorum.voters=1@127.0.0.1:5678" in lines

    def test_a_free_port_can_be_bound(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", free_port()))


class TestProcesses:
    def test_cpu_time_is_user_and_kernel_whatever_the_name(self) -> None:
        stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 1 0 5 6 7"
        assert parse_cpu_ticks(stat) == 300

    def test_anonymous_memory_is_in_bytes(self) -> None:
        assert parse_anonymous_bytes("VmRSS:\t  900 kB\nRssAnon:\t     512 kB\n") == 512 * 1024

    def test_a_status_without_it_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="RssAnon"):
            parse_anonymous_bytes("Name:\tkthreadd\n")

    def test_the_kernel_says_it_in_this_form(self) -> None:
        assert cpu_seconds(os.getpid()) > 0
        assert anonymous_bytes(os.getpid()) > 0

    def test_the_peak_is_one_figure_and_counts_the_beginning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        samples = iter([30, 20])
        monkeypatch.setattr(kafka_peer, "anonymous_bytes", lambda pid: next(samples, 10))
        with peak_anonymous_bytes(1) as peak:
            pass
        assert peak == [30]
