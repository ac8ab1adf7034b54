"""The address and credentials of a Kafka broker: TLS and SASL, in the words of librdkafka and of Spark's
connector.

This module needs no Kafka client. Secrets come from the environment alone, and nothing here shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stagepost.errors import ConfigError

PASSWORD_VARIABLE = "STAGEPOST_KAFKA_PASSWORD"
SECURITY_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECRET_FILE_BYTES_MAX = 65_536
RECONNECT_WITHIN_MS = 2_000
"""Milliseconds after which the client finds a broker that is back, at most."""
_JAAS_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Secret:
    """Text that no log, error or representation shows."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"


class KafkaAccess(msgspec.Struct, frozen=True):
    """Access to a broker. `ca_file`, `certificate_file` and `key_file` are PEM; the key is not encrypted, and
    only we may read its file."""

    bootstrap: str
    security_protocol: str = "plaintext"
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: Secret | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @property
    def has_tls(self) -> bool:
        return self.security_protocol.endswith("ssl")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol.startswith("sasl_")

    def check(self) -> KafkaAccess:
        """Return this access; raise `ConfigError` for parts that do not go together, or files that cannot be
        read."""
        if not self.bootstrap.strip():
            raise ConfigError("no address of a Kafka broker was given", advice="give HOST:PORT with --kafka")
        if self.has_sasl and (self.username is None or self.password is None):
            missing = (
                "kafka.username is not set" if self.username is None else f"{PASSWORD_VARIABLE} is empty"
            )
            raise ConfigError(
                f"kafka.security_protocol is {self.security_protocol}, which needs a user and a password, but {missing}",
                advice=f"set kafka.username in stagepost.toml and {PASSWORD_VARIABLE} in the environment",
            )
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError(
                "of kafka.certificate_file and kafka.key_file only one is set",
                advice="set both, or neither",
            )
        for path in (self.ca_file, self.certificate_file, self.key_file):
            if path is not None:
                _read(path)
        return self

    def client_settings(self) -> dict[str, str]:
        """Return the settings for librdkafka."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.security_protocol,
            "reconnect.backoff.max.ms": str(RECONNECT_WITHIN_MS),
        }
        if self.has_sasl:
            assert self.username is not None
            assert self.password is not None
            settings["sasl.mechanism"] = self.sasl_mechanism
            settings["sasl.username"] = self.username
            settings["sasl.password"] = self.password.reveal()
        if self.has_tls:
            named = {
                "ssl.ca.location": self.ca_file,
                "ssl.certificate.location": self.certificate_file,
                "ssl.key.location": self.key_file,
            }
            settings |= {name: str(path) for name, path in named.items() if path is not None}
        return settings

    def spark_options(self) -> dict[str, str]:
        """Return the options for Spark's connector, whose client is Kafka's own."""
        options = {"bootstrap.servers": self.bootstrap, "security.protocol": self.security_protocol.upper()}
        if self.has_sasl:
            assert self.username is not None
            assert self.password is not None
            module = _JAAS_MODULES[self.sasl_mechanism]
            user, password = _quoted(self.username), _quoted(self.password.reveal())
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.jaas.config"] = f"{module} required username={user} password={password};"
        if self.has_tls:
            if self.ca_file is not None:
                options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read(self.ca_file)}
            if self.certificate_file is not None and self.key_file is not None:
                options |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.certificate.chain": _read(self.certificate_file),
                    "ssl.keystore.key": _read(self.key_file),
                }
        return {f"kafka.{name}": value for name, value in options.items()}


def password_from(environment: Mapping[str, str]) -> Secret | None:
    text = environment.get(PASSWORD_VARIABLE)
    return Secret(text) if text else None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(SECRET_FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(
            f"{path}, named in [kafka], cannot be read: {(error.strerror or 'no reason given').lower()}",
            advice="give the path of a PEM file",
        ) from error
