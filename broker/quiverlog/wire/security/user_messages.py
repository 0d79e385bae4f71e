"""Users and tokens: WHO_AM_I, ALTER_USERS, DESCRIBE_USERS, CREATE_TOKEN, END_TOKENS.

No message has a password, or a token's key: the client makes of it what checks a proof (`scram`).
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import TOKENS_PER_USER_MAX, USERS_PER_PAGE_MAX
from quiverlog.wire.authentication_messages import Mechanism
from quiverlog.wire.messages import (
    Api,
    BrokerEndpoint,
    Few,
    Int64,
    Known,
    Moment,
    Part,
    Request,
    Response,
    UInt31,
    UInt63,
)

__all__ = [
    "AlterUsersRequest",
    "AlterUsersResponse",
    "CreateTokenRequest",
    "CreateTokenResponse",
    "DescribeUsersRequest",
    "DescribeUsersResponse",
    "DescribedToken",
    "DescribedUser",
    "EndTokensRequest",
    "EndTokensResponse",
    "PasswordKind",
    "ScramCredential",
    "UserChange",
    "WhoAmIRequest",
    "WhoAmIResponse",
]

Key = Annotated[bytes, Meta(max_length=64)]
TokenId = Annotated[str, Meta(max_length=64)]


class UserChange(enum.IntEnum):
    NOTHING = 0
    CREATE = 1
    PASSWORD = 2
    PASSWORD_BESIDE = 3
    """The one before counts on."""
    DROP_OLD = 4
    ADMIN = 5
    NO_ADMIN = 6
    DELETE = 7


class ScramCredential(Part, array_like=True, gc=False):
    """What a broker keeps of a password or a token."""

    mechanism: Mechanism = ""
    salt: Key = b""
    iterations: UInt31 = 0
    stored_key: Key = b""
    server_key: Key = b""

    def __repr__(self) -> str:
        return f"ScramCredential({self.mechanism!r}, ***)"


class WhoAmIRequest(Request, array_like=True, gc=False):
    """Asks for what the connection has proved."""

    API: ClassVar[Api] = Api.WHO_AM_I


class WhoAmIResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.WHO_AM_I
    principal: str = ""
    mechanism: Mechanism = ""
    expires_ms: Known = -1
    is_super: bool = False
    authorises: bool = False
    listener: str = ""


class AlterUsersRequest(Request, array_like=True, gc=False):
    """Creates a user, changes it, or deletes it. The controller decides."""

    API: ClassVar[Api] = Api.ALTER_USERS
    name: str = ""
    change: UInt31 = 0
    credentials: Few[ScramCredential] = []
    is_admin: bool = False


class AlterUsersResponse(Response, array_like=True, gc=False):
    """A broker with this metadata version knows of it."""

    API: ClassVar[Api] = Api.ALTER_USERS
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None


class DescribeUsersRequest(Request, array_like=True, gc=False):
    """Asks for users by name: for one, or a page of all from `first_name` on."""

    API: ClassVar[Api] = Api.DESCRIBE_USERS
    name: str | None = None
    first_name: str = ""
    with_tokens: bool = False


class PasswordKind(Part, array_like=True, gc=False):
    """Of a mechanism: how a new password is made that is to count beside the present one."""

    mechanism: Mechanism = ""
    salt: Key = b""
    iterations: UInt31 = 0
    count: UInt31 = 0


class DescribedToken(Part, array_like=True, gc=False):
    token_id: TokenId = ""
    created_us: Moment = 0
    expires_us: Moment = 0


class DescribedUser(Part, array_like=True, gc=False):
    name: str = ""
    passwords: Few[PasswordKind] = []
    is_admin: bool = False
    changed_us: Moment = 0
    token_count: UInt31 = 0
    tokens: Annotated[list[DescribedToken], Meta(max_length=TOKENS_PER_USER_MAX)] = []


class DescribeUsersResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_USERS
    users: Annotated[list[DescribedUser], Meta(max_length=USERS_PER_PAGE_MAX)] = []
    next_name: str | None = None
    metadata_version: UInt63 = 0


class CreateTokenRequest(Request, array_like=True, gc=False):
    """Asks for a token with the rights of a user, the asking one's own where `owner` is empty."""

    API: ClassVar[Api] = Api.CREATE_TOKEN
    owner: str = ""
    lifetime_ms: Int64 = 0
    credential: ScramCredential | None = None


class CreateTokenResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.CREATE_TOKEN
    token_id: TokenId = ""
    owner: str = ""
    expires_us: Moment = 0
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None


class EndTokensRequest(Request, array_like=True, gc=False):
    """Ends tokens of a user by their ids, all without any; connections that used them end."""

    API: ClassVar[Api] = Api.END_TOKENS
    owner: str = ""
    token_ids: Few[TokenId] = []


class EndTokensResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.END_TOKENS
    ended_count: UInt31 = 0
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None
