"""A forged OpenID Connect provider in the test's own process: it says what a test has it say, true or not.

with ForgedProvider() as provider:
    provider.claims = {"sub": "7", "groups": ["ops"]}
    provider.code("c", nonce)          # a code that it takes once
    provider.answers["/keys"] = garbage  # instead of what it should answer
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

CLIENT_ID, SECRET = "respsite-tests", "a secret & that needs quoting"
KEY_NAME = "k1"
Answer = Callable[["Handler"], None]


@cache
def rsa_key(name: str = KEY_NAME) -> RSAPrivateKey:
    """Return a private key, the same one for the same name."""
    return generate_private_key(public_exponent=65537, key_size=2048)


def jwk_of(name: str = KEY_NAME, **changed: object) -> dict[str, Any]:
    """Return its public key as a provider publishes it."""
    return {**jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True), "kid": name, **changed}


def claims_for(issuer: str, nonce: str, /, **changed: object) -> dict[str, Any]:
    """Return the claims of a right token; those that are changed to None are left out."""
    now = int(time.time())
    right = {"iss": issuer, "aud": CLIENT_ID, "sub": "7", "iat": now, "exp": now + 300, "nonce": nonce}
    return {name: value for name, value in {**right, **changed}.items() if value is not None}


def signed(claims: Mapping[str, object], key: str = KEY_NAME, *, algorithm: str = "RS256", **header: object) -> str:
    """Return a token; `header` is what is changed in it."""
    kept = {"kid": key, **header}
    return jwt.encode(dict(claims), rsa_key(key), algorithm, headers={k: v for k, v in kept.items() if v is not None})


class Handler(BaseHTTPRequestHandler):
    """One request to it."""

    server: "ForgedProvider"

    def do_GET(self) -> None:
        self.server.answer(self, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.answer(self, {name: values[0] for name, values in parse_qs(body).items()})

    def send(self, said: object, status: int = 200, **headers: str) -> None:
        """Answer with JSON."""
        body = json.dumps(said).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class ForgedProvider(ThreadingHTTPServer):
    """The provider; what it is asked for is in `asked`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.released = threading.Event()  # ends what hangs
        self.reset()

    def reset(self) -> None:
        """Tell the truth again."""
        self.answers: dict[str, Answer] = {}  # by the path: what it does there instead
        self.claims: dict[str, Any] = {"groups": ["ops"], "preferred_username": "ana"}
        self.userinfo: dict[str, Any] = {}
        self.document: dict[str, Any] = {}  # what is changed in it; None leaves out
        self.keys: list[object] = [jwk_of()]
        self.sign: Callable[[dict[str, Any]], object] = signed
        self.codes: dict[str, tuple[str, str]] = {}  # the nonce and the challenge of each that it has not seen again
        self.asked: list[str] = []

    def __enter__(self) -> "ForgedProvider":
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def sent(self, address: str, code: str = "code") -> dict[str, str]:
        """Take somebody who is sent here, as the page where they sign in would; return what they go back with."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert query["code_challenge_method"] == "S256"
        self.codes[code] = (query["nonce"], query["code_challenge"])
        return {"code": code, "state": query["state"]}

    def answer(self, handler: Handler, form: Mapping[str, str]) -> None:
        path = urlsplit(handler.path).path
        self.asked.append(path)
        if path in self.answers:
            self.answers[path](handler)
        elif path == "/.well-known/openid-configuration":
            handler.send(self._document())
        elif path == "/keys":
            handler.send({"keys": self.keys})
        elif path == "/userinfo":
            assert handler.headers["authorization"] == "Bearer access"
            handler.send(self.userinfo)
        else:
            self._exchange(handler, form)

    def _document(self) -> dict[str, Any]:
        places = {"authorization": "authorize", "token": "token", "userinfo": "userinfo", "end_session": "end"}
        endpoints = {f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in places.items()}
        whole = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **endpoints, **self.document}
        return {name: value for name, value in whole.items() if value is not None}

    def _exchange(self, handler: Handler, form: Mapping[str, str]) -> None:
        proof = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        nonce, challenge = self.codes.pop(form.get("code", ""), ("", ""))
        if proof.rstrip(b"=").decode() != challenge or "Basic " not in handler.headers.get("authorization", ""):
            handler.send({"error": "invalid_grant", "error_description": "no such code"}, 400)
            return
        token = self.sign(claims_for(self.issuer, nonce, **self.claims))
        handler.send({"access_token": "access", "token_type": "Bearer", "id_token": token})
