"""A stand-in for a university: an OpenID Connect provider and a learning platform that speaks LTI 1.3.

It speaks the real protocols: discovery, authorization codes with PKCE, client secrets, launches signed by RS256, tokens
for signed assertions, a roster in pages, columns of marks.
`Provider.person` is whoever is signed in there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "the-lab", "a secret of the provider's"
_LTI = "https://purl.imsglobal.org/spec/lti/claim/"


@dataclass
class Provider:
    """`address` by OpenID Connect, `platform` by LTI: two sites for a browser, one server."""

    port: int
    person: dict[str, Any] = field(default_factory=dict)
    """Claims of whoever is signed in there."""
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    signs_with: rsa.RSAPrivateKey | None = None
    """Another key than the published one: launches are forged."""
    codes: dict[str, str] = field(default_factory=dict)
    """PKCE challenges by authorization code; each code is taken once."""
    tokens: set[str] = field(default_factory=set)
    launches: list[str] = field(default_factory=list)
    """Signed launches, to be sent again by a test."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def platform(self) -> str:
        return f"http://localhost:{self.port}"

    # Services of LTI 1.3 ------------------------------------------------------------------------------------------

    tool_keys: str = ""
    """Where the tool shows its public keys."""
    members: list[dict[str, Any]] = field(default_factory=list)
    columns: list[dict[str, Any]] = field(default_factory=list)
    scores: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """The last score by column and person."""

    def services(self) -> dict[str, Any]:
        """Return the claims of a launch that tell where they are."""
        return {
            "https://purl.imsglobal.org/spec/lti-nrps/claim/namesroleservice": {
                "context_memberships_url": f"{self.platform}/members?page=0"
            },
            "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint": {"lineitems": f"{self.platform}/columns"},
            f"{_LTI}context": {"id": "7", "title": "Distributed training"},
        }

    def service_token(self, asked: dict[str, str]) -> dict[str, str]:
        assertion, address = asked["client_assertion"], f"{self.platform}/service-token"
        key = jwt.PyJWKClient(self.tool_keys).get_signing_key_from_jwt(assertion).key
        claims = jwt.decode(assertion, key, algorithms=["RS256"], audience=address, issuer=CLIENT)
        assert claims["sub"] == CLIENT and asked["grant_type"] == "client_credentials"
        token = secrets.token_urlsafe()
        self.tokens.add(token)
        return {"access_token": token}

    # OpenID Connect -----------------------------------------------------------------------------------------------

    def discovery(self) -> dict[str, str]:
        return {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/authorize",
            "token_endpoint": f"{self.address}/token",
            "userinfo_endpoint": f"{self.address}/userinfo",
        }

    def authorize(self, asked: dict[str, str]) -> str:
        """Return where the browser goes on."""
        assert asked["client_id"] == CLIENT and asked["code_challenge_method"] == "S256", asked
        code = secrets.token_urlsafe()
        self.codes[code] = asked["code_challenge"]
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, asked: dict[str, str], authorization: str) -> dict[str, str]:
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        assert asked.get("client_secret") == SECRET or authorization == f"Basic {basic}", "another secret"
        proof = hashlib.sha256(asked["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(proof).decode().rstrip("=") == self.codes.pop(asked["code"])
        token = secrets.token_urlsafe()
        self.tokens.add(token)
        return {"access_token": token, "token_type": "Bearer"}

    # LTI 1.3 ------------------------------------------------------------------------------------------------------

    def keys(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**public, "kid": "first", "alg": "RS256", "use": "sig"}]}

    def launch(self, asked: dict[str, str]) -> str:
        """Return the page that posts a signed launch to the tool."""
        assert asked["client_id"] == CLIENT and asked["response_mode"] == "form_post", asked
        now = int(datetime.now(UTC).timestamp())
        claims = {
            "iss": self.platform, "aud": CLIENT, "sub": "42", "iat": now, "exp": now + 300, "nonce": asked["nonce"],
            f"{_LTI}message_type": "LtiResourceLinkRequest", f"{_LTI}version": "1.3.0", f"{_LTI}deployment_id": "1",
            f"{_LTI}target_link_uri": "/", f"{_LTI}resource_link": {"id": "link"}, f"{_LTI}roles": [], **self.person,
        }  # fmt: skip
        signed = jwt.encode(claims, self.signs_with or self.key, algorithm="RS256", headers={"kid": "first"})
        self.launches.append(signed)
        fields = "".join(
            f'<input type="hidden" name="{name}" value="{html.escape(value)}">'
            for name, value in {"id_token": signed, "state": asked["state"]}.items()
        )
        action = html.escape(asked["redirect_uri"])
        return f'<form method="post" action="{action}">{fields}</form><script>document.forms[0].submit()</script>'


@contextmanager
def identity_provider() -> Iterator[Provider]:
    """Run one until the end of the context."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.headers["Content-Type"].endswith("+json"):
                self.take(json.loads(body))
            else:
                self.answer({name: values[0] for name, values in parse_qs(body).items()})

        def take(self, body: dict[str, Any]) -> None:
            """Take what a tool writes: a new column, or a score for one."""
            self.identify()
            kind, path = self.headers["Content-Type"], urlsplit(self.path).path
            if path == "/columns":
                assert kind == "application/vnd.ims.lis.v2.lineitem+json"
                number = len(provider.columns)
                provider.columns.append({"id": f"{provider.platform}/columns/{number}?type=lti", **body})
                self.send(json.dumps(provider.columns[-1]))
            else:
                assert kind == "application/vnd.ims.lis.v1.score+json" and path.endswith("/scores"), path
                assert urlsplit(self.path).query == "type=lti", self.path
                provider.scores[path.split("/")[-2], body["userId"]] = body
                self.send("{}")

        def identify(self) -> None:
            assert self.headers["Authorization"].removeprefix("Bearer ") in provider.tokens

        def answer(self, asked: dict[str, str]) -> None:
            match urlsplit(self.path).path:
                case "/.well-known/openid-configuration":
                    self.send(json.dumps(provider.discovery()))
                case "/authorize":
                    self.send_response(302)
                    self.send_header("Location", provider.authorize(asked))
                    self.end_headers()
                case "/token":
                    self.send(json.dumps(provider.token(asked, self.headers.get("Authorization", ""))))
                case "/userinfo":
                    self.identify()
                    self.send(json.dumps({"sub": "42", **provider.person}))
                case "/keys":
                    self.send(json.dumps(provider.keys()))
                case "/launch":
                    self.send(provider.launch(asked), "text/html")
                case "/service-token":
                    self.send(json.dumps(provider.service_token(asked)))
                case "/columns":
                    self.identify()
                    self.send(json.dumps(provider.columns))
                case "/members":  # two on each page
                    self.identify()
                    first = 2 * int(asked["page"])
                    more = f"{provider.platform}/members?page={int(asked['page']) + 1}"
                    link = {"Link": f'<{more}>; rel="next"'} if provider.members[first + 2 :] else {}
                    self.send(json.dumps({"members": provider.members[first : first + 2]}), **link)
                case other:
                    self.send_error(404, other)

        def send(self, text: str, kind: str = "application/json", **headers: str) -> None:
            self.send_response(200)
            for name, value in {"Content-Type": kind, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
