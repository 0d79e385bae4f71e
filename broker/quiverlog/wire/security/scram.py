"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides of a login, without I/O.

    client                                       broker
    n,,n=NAME,r=NONCE                       ──▶
                                            ◀──  r=NONCE+MORE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+MORE,p=PROOF             ──▶
                                            ◀──  v=SIGNATURE

A password is on no wire and at no broker: a broker keeps what checks a proof, and cannot make one.
Nonces are handed in, one for each login. Channels are not bound; `p=` and `y` are refused. A login
of a name that does not exist takes the same steps, with the same number of HMACs, as of one that
does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quiverlog.limits import (
    CREDENTIALS_PER_MECHANISM_MAX,
    PASSWORD_BYTES_MAX,
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    USER_NAME_CHARS_MAX,
)
from quiverlog.wire.peer_proof import ProofRefused

__all__ = [
    "HASHES",
    "SCRAM_SALT_BYTES",
    "SCRAM_SHA_256",
    "SCRAM_SHA_512",
    "ClientKeys",
    "Credential",
    "ScramClient",
    "ScramServer",
    "check_credential",
    "check_work",
    "credential_line",
    "derive_keys",
    "make_credential",
    "nonce_of",
    "parse_credential_line",
    "prepare_password",
]

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
HASHES: Final[Mapping[str, str]] = {SCRAM_SHA_512: "sha512", SCRAM_SHA_256: "sha256"}
"""The best first."""
_NONCE_BYTES: Final = 24
_NONCE_CHARS_MIN: Final = 16
"""Other clients make shorter ones."""
SCRAM_SALT_BYTES: Final = 16
_SALT_BYTES_MIN: Final = 8
_SALT_BYTES_MAX: Final = 64
_NONCE_CHARS_MAX: Final = 256
_NO_BINDING: Final = "n"
_FORBIDDEN: Final = (
    *(stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3),
    *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
    *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
)


class ClientKeys(NamedTuple):
    """What a client makes of a password, once for each salt: the slow step."""

    client_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class Credential:
    """What a broker keeps of a password or a token."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def prepare_password(password: str) -> bytes:
    """Return a password's bytes, as SASLprep (RFC 4013) makes them.

    Raises:
        ValueError: what is wrong, without any part of the password.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one
        for one in password
        if not stringprep.in_table_b1(one)
    )
    text = unicodedata.normalize("NFKC", mapped)
    if any(is_in(one) for one in text for is_in in _FORBIDDEN):
        raise ValueError("a password has no control characters, and none without a meaning")
    prepared = text.encode()
    if not 1 <= len(prepared) <= PASSWORD_BYTES_MAX:
        raise ValueError(
            f"a password has 1 to {PASSWORD_BYTES_MAX} bytes as UTF-8, not {len(prepared)}"
        )
    return prepared


def derive_keys(mechanism: str, password: bytes, salt: bytes, iterations: int) -> ClientKeys:
    """Takes milliseconds: PBKDF2."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    return ClientKeys(
        hmac.digest(salted, b"Client Key", name), hmac.digest(salted, b"Server Key", name)
    )


def make_credential(mechanism: str, password: bytes, salt: bytes, iterations: int) -> Credential:
    keys = derive_keys(mechanism, password, salt, iterations)
    stored_key = hashlib.new(HASHES[mechanism], keys.client_key).digest()
    return Credential(salt, iterations, stored_key, keys.server_key)


def check_credential(mechanism: str, credential: Credential) -> None:
    """Raises ValueError: another one made it, and it cannot be used."""
    size = hashlib.new(HASHES[mechanism]).digest_size
    check_work(credential.salt, credential.iterations)
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        raise ValueError(f"the keys of {mechanism} have {size} bytes")


def check_work(salt: bytes, iterations: int) -> None:
    """Check what another one has chosen for the slow step, before it is done: few iterations give
    the password away, many hold the processor. Raises ValueError."""
    if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
        raise ValueError(_why_iterations(iterations))
    if not _SALT_BYTES_MIN <= len(salt) <= _SALT_BYTES_MAX:
        raise ValueError(
            f"a salt has {_SALT_BYTES_MIN} to {_SALT_BYTES_MAX} bytes, not {len(salt)}"
        )


def _why_iterations(iterations: int) -> str:
    return f"{iterations} iterations are outside {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}"


def nonce_of(entropy: Callable[[int], bytes]) -> str:
    return base64.b64encode(entropy(_NONCE_BYTES)).decode()


def credential_line(user: str, mechanism: str, credential: Credential) -> str:
    """Return a line for the file of the first administrator; no password can be read from it."""
    parts = (credential.salt, credential.stored_key, credential.server_key)
    salt, stored, server = (base64.b64encode(part).decode() for part in parts)
    return f"{user} {mechanism}${credential.iterations}:{salt}${stored}:{server}"


_LINE: Final = re.compile(
    r"(?P<user>[A-Za-z0-9._@-]+) (?P<mechanism>[A-Z0-9-]+)\$(?P<iterations>[0-9]{1,9}):"
    r"(?P<salt>[A-Za-z0-9+/=]+)\$(?P<stored>[A-Za-z0-9+/=]+):(?P<server>[A-Za-z0-9+/=]+)"
)


def parse_credential_line(line: str) -> tuple[str, str, Credential]:
    """Return (user, mechanism, credential).

    Raises:
        ValueError: what is wrong, without any part of the line.
    """
    found = _LINE.fullmatch(line.strip())
    if found is None or len(found["user"]) > USER_NAME_CHARS_MAX:
        raise ValueError("it is no line of `quiverlog user hash`")
    if found["mechanism"] not in HASHES:
        raise ValueError(f"mechanism {found['mechanism']}, allowed are {', '.join(HASHES)}")
    try:
        keys = [base64.b64decode(found[k], validate=True) for k in ("salt", "stored", "server")]
    except (binascii.Error, ValueError):
        raise ValueError("it is no line of `quiverlog user hash`") from None
    credential = Credential(keys[0], int(found["iterations"]), keys[1], keys[2])
    check_credential(found["mechanism"], credential)
    return found["user"], found["mechanism"], credential


class ScramClient:
    """One login: `first` is sent, then `final` of the broker's answer; `check` its last one.

    Args:
        derive: as `derive_keys` of the password; a caller may remember its results.
    """

    __slots__ = ("_auth_message", "_bare", "_derive", "_hash", "_keys", "_nonce", "first")

    def __init__(
        self,
        mechanism: str,
        user: str,
        derive: Callable[[bytes, int], ClientKeys],
        nonce: str,
    ) -> None:
        assert len(nonce) >= _NONCE_CHARS_MIN
        self._hash = HASHES[mechanism]
        self._derive = derive
        self._nonce = nonce
        self._bare = f"n={user},r={self._nonce}"
        self._auth_message = b""
        self._keys = ClientKeys(b"", b"")
        self.first = f"{_NO_BINDING},,{self._bare}".encode()

    def final(self, data: bytes) -> bytes:
        """Return the proof. Raises ProofRefused: no broker that keeps to the RFC answers so."""
        server_first = _text(data)
        nonce, salt_text, iterations_text = _fields(server_first, "r", "s", "i")
        # Its own part first: else an answer to another login would do.
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):
            raise ProofRefused("the broker's nonce does not begin with the client's")
        salt = _bytes(salt_text)
        # Both bounds: few give an eavesdropper the password, many hold this processor.
        iterations = int(iterations_text) if _is_number(iterations_text) else -1
        if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
            raise ProofRefused(f"the broker asks for {_why_iterations(iterations)}")
        if not _SALT_BYTES_MIN <= len(salt) <= _SALT_BYTES_MAX:
            raise ProofRefused(f"the broker's salt has {len(salt)} bytes")
        self._keys = self._derive(salt, iterations)
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        self._auth_message = f"{self._bare},{server_first},{without_proof}".encode()
        stored_key = hashlib.new(self._hash, self._keys.client_key).digest()
        signature = hmac.digest(stored_key, self._auth_message, self._hash)
        proof = base64.b64encode(_xor(self._keys.client_key, signature)).decode()
        return f"{without_proof},p={proof}".encode()

    def check(self, data: bytes) -> None:
        """Check that the broker has the user's keys. Raises ProofRefused."""
        assert self._auth_message, "it answers a proof"
        (signature,) = _fields(_text(data), "v")
        own = hmac.digest(self._keys.server_key, self._auth_message, self._hash)
        if not hmac.compare_digest(own, _bytes(signature)):
            raise ProofRefused("the broker has not proved that it has the user's keys")


class ScramServer:
    """One login at a broker: `first`, then `final`, once each.

    Args:
        find: returns the credentials that count for a name, all with one salt; none: there is no
            such user.
        fake_key: of the cluster; makes the salt for names that do not exist.
        iterations: for those.
    """

    __slots__ = ("_candidates", "_fake_key", "_find", "_hash", "_iterations", "_message", "_nonce",
                 "name")  # fmt: skip

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], Sequence[Credential]],
        nonce: str,
        *,
        fake_key: bytes,
        iterations: int,
    ) -> None:
        assert len(nonce) >= _NONCE_CHARS_MIN
        self._hash = HASHES[mechanism]
        self._find = find
        self._nonce = nonce
        self._fake_key = fake_key
        self._iterations = iterations
        self._message = ""
        self._candidates: Sequence[Credential] = ()
        self.name = ""
        """That the client has given, not proved before `final` returns."""

    def first(self, data: bytes) -> bytes:
        """Return the salt for a name. Raises ProofRefused."""
        assert not self._message, "one login"
        flag, authzid, bare = _split_first(_text(data))
        if flag != _NO_BINDING:
            raise ProofRefused(f"channel binding {flag[:1]!r} is not taken: only `n` is")
        self.name, client_nonce = _fields(bare, "n", "r")
        if not 1 <= len(self.name) <= USER_NAME_CHARS_MAX:
            raise ProofRefused(f"its name has {len(self.name)} characters")
        if authzid not in ("", f"a={self.name}"):
            raise ProofRefused("it asks to act for another user")
        if not _NONCE_CHARS_MIN <= len(client_nonce) <= _NONCE_CHARS_MAX:
            raise ProofRefused(f"its nonce has {len(client_nonce)} characters")
        # For each name, whether it exists or not: the time must not tell them apart.
        salt = hmac.digest(self._fake_key, self.name.encode(), self._hash)[:SCRAM_SALT_BYTES]
        self._candidates = self._find(self.name)
        iterations = self._iterations
        if self._candidates:
            salt, iterations = self._candidates[0].salt, self._candidates[0].iterations
        self._nonce = client_nonce + self._nonce
        salt_text = base64.b64encode(salt).decode()
        answer = f"r={self._nonce},s={salt_text},i={iterations}"
        gs2 = base64.b64encode(f"{flag},{authzid},".encode()).decode()
        without_proof = f"c={gs2},r={self._nonce}"
        self._message = f"{bare},{answer},{without_proof}"
        return answer.encode()

    def final(self, data: bytes) -> tuple[bytes, Credential]:
        """Return the broker's proof, and the credential that was proved. Raises ProofRefused."""
        message, self._message = self._message, ""
        # Once: a second guess needs another nonce.
        if not message:
            raise ProofRefused("it has not asked for a salt")
        binding, nonce, proof_text = _fields(_text(data), "c", "r", "p")
        # Whole: with a part of it, an earlier login's proof could be sent again.
        is_own = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        is_bound = message.rpartition(",c=")[2] == f"{binding},r={nonce}"
        proof = _bytes(proof_text)
        size = hashlib.new(self._hash).digest_size
        if not is_own or not is_bound or len(proof) != size:
            raise ProofRefused("its proof is for another login")
        fake = Credential(b"", 0, bytes(size), bytes(size))
        candidates = [*self._candidates, fake, fake][:CREDENTIALS_PER_MECHANISM_MAX]
        found = fake
        for one in candidates:
            signature = hmac.digest(one.stored_key, message.encode(), self._hash)
            client_key = _xor(proof, signature)
            stored_key = hashlib.new(self._hash, client_key).digest()
            if hmac.compare_digest(stored_key, one.stored_key):
                found = one
        own = hmac.digest(found.server_key, message.encode(), self._hash)
        if found is fake:
            why = "its password is another" if self._candidates else "there is no such user"
            raise ProofRefused(f"{why}: {self.name!r}")
        return f"v={base64.b64encode(own).decode()}".encode(), found


def _text(data: bytes) -> str:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise ProofRefused("a message is not ASCII") from None
    if any(one < " " or one == "\x7f" for one in text):
        raise ProofRefused("a message has control characters")
    return text


def _split_first(text: str) -> tuple[str, str, str]:
    parts = text.split(",", 2)
    if len(parts) < 3:
        raise ProofRefused("its first message is no SCRAM")
    return parts[0], parts[1], parts[2]


def _fields(text: str, *names: str) -> list[str]:
    """Return the values of these attributes, which come in this order.

    Others may be between the last but one and the last, or behind a single one: they are optional
    by the RFC, but for `m=`.
    """
    parts = [one.partition("=") for one in text.split(",")]
    found = [name for name, _, _ in parts]
    if any(not equals for _, equals, _ in parts):
        raise ProofRefused("an attribute has no value")
    if "m" in found:
        raise ProofRefused("an extension is asked for, and none is here")
    if "e" in found:
        raise ProofRefused("the other side refuses")
    if len(set(found)) != len(found):
        raise ProofRefused("an attribute is there twice")
    needed = list(names)
    if [name for name in found if name in needed] != needed or found[0] != needed[0]:
        raise ProofRefused(f"the attributes are {found[:8]}, not {needed}")
    values = {name: value for name, _, value in parts}
    return [values[name] for name in names]


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProofRefused("a value is not base64") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9 and not text.startswith("0")


def _xor(left: bytes, right: bytes) -> bytes:
    assert len(left) == len(right)
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
