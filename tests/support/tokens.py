"""A token server, as registries of the project `distribution` send their clients to one.

Source: https://distribution.github.io/distribution/spec/auth/token/ and `jwt` beside it.
"""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

_LIFETIME_S = 60
_SERVICE = "lab"


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class _Issuer:
    """Signs tokens by a key whose certificate a registry trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _SERVICE)])
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(1)
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def token(self, user: str, scopes: list[str], *, may_push: bool) -> str:
        """Return a token for scopes ``repository:NAME:ACTIONS``; all may pull."""
        now = int(time.time())
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            granted = [action for action in actions.split(",") if may_push or action == "pull"]
            access.append({"type": kind, "name": name, "actions": granted})
        certificate = self.certificate.public_bytes(serialization.Encoding.DER)
        head = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(certificate).decode()]}
        claims = {
            "iss": _SERVICE,
            "sub": user,
            "aud": _SERVICE,
            "iat": now,
            "nbf": now - 5,
            "exp": now + _LIFETIME_S,
            "jti": str(time.monotonic_ns()),
            "access": access,
        }
        signed = ".".join(_base64url(json.dumps(part).encode()) for part in (head, claims))
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64url(r.to_bytes(32) + s.to_bytes(32))}"


@contextmanager
def serving_tokens(directory: Path, user: str, password: str) -> Iterator[str]:
    """Serve tokens to all for pulls, and to one user for pushes; yield the address.

    The certificate of the tokens is ``tokens.crt`` in `directory`. If the registry has one there,
    ``own.crt``, the tokens come by TLS, too.
    """
    issuer = _Issuer()
    (directory / "tokens.crt").write_bytes(issuer.certificate.public_bytes(serialization.Encoding.PEM))
    expected = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = self.headers.get("Authorization", "")
            if login not in ("", expected):
                self.send_error(401)
                return
            query = parse_qs(urlsplit(self.path).query)
            scopes = [scope for value in query.get("scope", []) for scope in value.split()]
            token = issuer.token(user if login else "", scopes, may_push=bool(login))
            body = json.dumps({"token": token, "expires_in": _LIFETIME_S}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if (directory / "own.crt").exists():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(directory / "own.crt", directory / "own.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{scheme}://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()
