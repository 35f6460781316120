"""The configuration of a process in role meta, from its file and its environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from firnmq.config import (
    EtcdConfig,
    LogConfig,
    MetaConfig,
    MetaServiceConfig,
    SecurityConfig,
    Settings,
    is_loopback,
)
from firnmq.errors import InvalidArgument

_SECTIONS = ("meta", "etcd", "service", "security", "log")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetaRoleConfig:
    """The sections of a process in role meta."""

    meta: MetaConfig = dataclasses.field(default_factory=MetaConfig)
    """`endpoints` default to the member that the process runs itself."""
    etcd: EtcdConfig = dataclasses.field(default_factory=EtcdConfig)
    service: MetaServiceConfig = dataclasses.field(default_factory=MetaServiceConfig)
    security: SecurityConfig = dataclasses.field(default_factory=SecurityConfig)
    """Only `allow_insecure` is read."""
    log: LogConfig = dataclasses.field(default_factory=LogConfig)

    def exposures(self) -> list[str]:
        """What strangers could do, if anything; InvalidArgument unless allowed."""
        listeners = {
            "etcd": (self.etcd.enabled, self.etcd.host, self.etcd.ca_file),
            "service": (self.service.enabled, self.service.host, self.service.ca_file),
        }
        exposed = []
        for name, (enabled, host, ca_file) in listeners.items():
            if not enabled or is_loopback(host) or ca_file is not None:
                continue
            text = f"{name} on {host} has no TLS: any host that reaches it can change all metadata"
            if not self.security.allow_insecure:
                raise InvalidArgument(
                    f"{name}.ca_file", f"{text}; --allow-insecure if that is meant"
                )
            exposed.append(text)
        return exposed

    def store(self) -> MetaConfig:
        """How this process itself reaches etcd."""
        if self.meta.endpoints:
            return self.meta
        if not self.etcd.enabled:
            raise InvalidArgument(
                "meta.endpoints", "is empty and etcd.enabled is false: there is nothing to serve"
            )
        etcd = self.etcd
        return dataclasses.replace(
            self.meta,
            endpoints=(etcd.client_endpoint,),
            ca_file=self.meta.ca_file or etcd.ca_file,
            certificate_file=self.meta.certificate_file or etcd.certificate_file,
            key_file=self.meta.key_file or etcd.key_file,
        )


def load_meta_role_config(path: Path | None = None) -> MetaRoleConfig:
    """Defaults, overlaid by the file, overlaid by variables such as FIRN_ETCD_NAME."""
    settings = Settings(path)
    settings.refuse_unknown(_SECTIONS)
    return read_meta_role_config(settings)


def read_meta_role_config(settings: Settings) -> MetaRoleConfig:
    return MetaRoleConfig(
        meta=settings.section("meta", MetaConfig, prefix="META_"),
        etcd=settings.section("etcd", EtcdConfig, prefix="ETCD_"),
        service=settings.section("service", MetaServiceConfig, prefix="SERVICE_"),
        security=settings.section("security", SecurityConfig, prefix="SECURITY_"),
        log=settings.section("log", LogConfig, prefix="LOG_"),
    )
