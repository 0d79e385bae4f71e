"""Every call on a socket or a transport is in a table, with the test that makes it fail.

A new call site, in a file or of a kind that the table lacks, fails here until the table has what
becomes of its errors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("broker/quiverlog", "connector/pyspark_quiverlog", "demo/quiverlog_demo")
CALLS: Final = frozenset(
    (
        *("socket", "socketpair", "create_connection", "create_server", "open_connection"),
        *("accept", "sock_accept", "connect_accepted_socket", "bind", "listen", "connect"),
        *("getaddrinfo", "gethostname", "getsockname", "getpeername", "get_extra_info"),
        *("getsockopt", "setsockopt", "setblocking", "settimeout", "shutdown"),
        *("send", "sendall", "sendmsg", "sendto", "recv", "recv_into", "recvmsg", "poll", "select"),
        *("write", "writelines", "write_eof", "pause_reading", "resume_reading"),
        *("set_write_buffer_limits", "get_write_buffer_size", "abort", "is_closing", "close"),
        "new_event_loop",
    )
)
RECEIVERS: Final = re.compile(r"sock|transport|loop|asyncio|select|poll|connected|accepted|listen")
"""What a socket, a transport or their maker is called."""

CLIENT: Final = "unit/client/drivers/test_socket_failures.py::test_a_call_that_fails_once"
NO_LOOP: Final = (
    "unit/client/drivers/test_socket_failures.py::test_no_event_loop_for_producers_is_a_typed_error"
)
TRANSPORT: Final = (
    "unit/server/net/test_socket_failures.py::test_what_a_transport_refuses_costs_no_others"
)
WRITE: Final = (
    "unit/server/net/test_socket_failures.py::test_a_write_that_fails_costs_that_connection_alone"
)
NAMELESS: Final = (
    "unit/server/net/test_socket_failures.py::test_a_peer_that_the_system_cannot_name_has_no_name"
)
OPTIONS: Final = (
    "unit/server/net/test_socket_failures.py::test_a_socket_that_takes_no_option_is_served"
)
HTTP: Final = (
    "integration/test_broker_broken_connections.py::test_http_connections_that_end_leave_nothing"
)
TAKEN: Final = (
    "unit/server/net/test_socket_failures.py::test_an_address_that_another_has_just_taken_is_named"
)
GONE: Final = "unit/server/net/test_acceptor.py::test_peers_that_are_gone_before_they_are_taken"
PEER_CONNECT: Final = "unit/server/peers/test_peers.py::test_a_connect_that_the_system_refuses"
PEER_WRITE: Final = (
    "unit/server/peers/test_peers.py::test_a_write_that_fails_ends_the_connection_and_its_requests"
)
NOT_NOTIFIED: Final = (
    "unit/server/process/test_supervisor.py::test_a_supervisor_that_cannot_be_reached_costs_nothing"
)
SHAKING: Final = "unit/server/net/test_tls.py::test_a_handshake_that_fails_frees_its_place"
LEFT: Final = "unit/server/net/test_tls.py::test_clients_that_leave_at_every_moment"
START: Final = "never: before the broker serves clients, run.py reports it in one line and ends"
NO_ERROR: Final = "never: of an open descriptor, or without any remedy"
TABLE: Final[dict[str, dict[str, str]]] = {
    "broker/quiverlog/cli/console/interrupts.py": {
        "socketpair": (
            "unit/cli/console/test_interrupts.py::"
            "test_without_descriptors_ctrl_c_takes_effect_at_the_end"
        ),
    },
    "broker/quiverlog/cli/tools/doctor.py": {
        "create_connection": "integration/test_tls.py::test_doctor_says_when_certificates_end",
    },
    "broker/quiverlog/cli/cluster/quorum_recover.py": {
        "create_connection": (
            "integration/test_quorum_recover.py::"
            "test_two_of_three_are_thrown_away_and_the_third_goes_on"
        ),
    },
    "broker/quiverlog/client/drivers/asynchronous.py": {
        "create_connection": CLIENT, "get_extra_info": NO_ERROR, "setsockopt": CLIENT,
        "is_closing": NO_ERROR, "write": CLIENT, "abort": NO_ERROR, "new_event_loop": NO_LOOP,
        "close": NO_ERROR,
    },
    "broker/quiverlog/client/drivers/blocking.py": {
        "socket": CLIENT, "connect": CLIENT, "setsockopt": CLIENT, "sendmsg": CLIENT,
        "recv_into": CLIENT, "poll": CLIENT, "settimeout": NO_ERROR, "getpeername": CLIENT,
        "getsockname": CLIENT, "close": NO_ERROR,
    },
    "broker/quiverlog/client/drivers/name_lookup.py": {"getaddrinfo": CLIENT},
    "broker/quiverlog/local/ports.py": {
        "create_server": "unit/local/test_ports.py::test_another_port_is_tried_when_one_is_refused",
    },
    "broker/quiverlog/server/http.py": {
        "abort": HTTP, "close": HTTP, "write": HTTP, "get_extra_info": NO_ERROR,
    },
    "broker/quiverlog/server/net/connection.py": {
        "abort": NO_ERROR, "close": NO_ERROR, "write_eof": TRANSPORT,
        "get_write_buffer_size": NO_ERROR, "pause_reading": TRANSPORT, "resume_reading": TRANSPORT,
        "set_write_buffer_limits": TRANSPORT, "write": WRITE, "writelines": TRANSPORT,
        "get_extra_info": NO_ERROR,
    },
    "broker/quiverlog/server/net/listener.py": {
        "listen": TAKEN, "getsockname": NO_ERROR, "setblocking": NO_ERROR, "close": NO_ERROR,
        "sock_accept": (
            "unit/server/net/test_acceptor.py::"
            "test_a_failed_accept_is_followed_by_others"
        ),
        "connect_accepted_socket": (
            "unit/server/net/test_acceptor.py::"
            "test_a_protocol_that_cannot_be_made_costs_one_connection"
        ),
        "socketpair": (
            "unit/server/net/test_acceptor.py::"
            "test_a_process_connects_to_its_own_broker_by_no_listener"
        ),
        "setsockopt": GONE,
    },
    "broker/quiverlog/server/net/peer.py": {
        "get_extra_info": NAMELESS, "setsockopt": OPTIONS, "getsockopt": NO_ERROR,
    },
    "broker/quiverlog/server/net/tls.py": {
        "getpeername": LEFT, "recv": LEFT, "send": LEFT, "shutdown": LEFT,
        "connect_accepted_socket": SHAKING, "close": NO_ERROR,
    },
    "broker/quiverlog/server/net/tls_writer.py": {
        "set_write_buffer_limits": NO_ERROR, "writelines": LEFT,
    },
    "broker/quiverlog/server/peers/link.py": {
        "abort": NO_ERROR, "get_write_buffer_size": NO_ERROR, "write": PEER_WRITE,
        "writelines": PEER_WRITE, "create_connection": PEER_CONNECT, "get_extra_info": NO_ERROR,
    },
    "broker/quiverlog/server/process/broker_server.py": {"close": NO_ERROR},
    "broker/quiverlog/server/process/run.py": {
        "getaddrinfo": START, "socket": START, "setsockopt": START, "bind": START,
        "setblocking": NO_ERROR, "getsockname": NO_ERROR, "gethostname": NO_ERROR,
        "close": NO_ERROR, "sendto": NOT_NOTIFIED,
    },
}  # fmt: skip
"""File -> call -> the test in which it fails, or why it never does."""


def calls(path: Path) -> Iterator[str]:
    """Names of the calls on sockets and transports in a file."""
    tree = ast.parse(path.read_text())
    annotations = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(annotation := getattr(node, name, None), ast.AST):
                annotations |= {id(part) for part in ast.walk(annotation)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and id(node) not in annotations
            and node.attr in CALLS
            and RECEIVERS.search(ast.unparse(node.value))
        ):
            yield node.attr


def found() -> dict[str, set[str]]:
    files = {}
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if names := set(calls(path)):
                files[path.relative_to(ROOT).as_posix()] = names
    return files


def test_every_call_is_in_the_table() -> None:
    listed = {(file, name) for file, names in TABLE.items() for name in names}
    made = {(file, name) for file, names in found().items() for name in names}
    assert not made - listed, "add the test that makes these fail"
    assert not listed - made, "these are made no more"


def test_the_tests_of_the_table_exist() -> None:
    for names in TABLE.values():
        for where in names.values():
            if not where.startswith("never: "):
                path, _, test = where.partition("::")
                assert f"def {test}(" in (ROOT / "tests" / path).read_text(), where
