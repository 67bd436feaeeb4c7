"""Certificates of an authority that nobody knows but the test."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """Two files in PEM."""

    chain: Path
    key: Path


class Authority:
    """Signs certificates; `bundle` is what a client has to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        signed = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = folder / f"{name}.pem"
        self.bundle.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, host: str) -> Certificate:
        """Return a certificate for a host, or for a client of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _builder(_name(host), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        found = Certificate(self._folder / f"{host}.crt", self._folder / f"{host}.key")
        found.chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return found

    def server(self, host: str = "localhost", *, asks_for_clients: bool = False) -> ssl.SSLContext:
        """Return the context of a server for this host."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = self.certificate(host)
        context.load_cert_chain(own.chain, own.key)
        if asks_for_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.bundle)
        return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
