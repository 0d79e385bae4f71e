"""A cluster of brokers in one directory of this machine.

Owns `cluster.json` (the brokers and their settings), how brokers find each other, and when all are
ready. Two clusters share nothing, and only processes named in their files are signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quiverlog.addresses import parse_address
from quiverlog.client.base.security import Security
from quiverlog.errors import QuiverlogError
from quiverlog.limits import QUORUM_AUTO_VOTERS_MAX
from quiverlog.local.broker import LocalBroker
from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.new_folder import new_folder
from quiverlog.local.ports import free_port, is_free
from quiverlog.local.process import ProcessState, wait_until
from quiverlog.local.secret_file import credential_text, make_secret, write_private
from quiverlog.local.tls_files import TlsFolder

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["BROKERS_MAX", "LocalCluster", "racks_of"]

BROKERS_MAX: Final = 9

_FILE: Final = "cluster.json"
_LOCK: Final = "lock"
_ADMIN: Final = "admin"
_ADMIN_PASSWORD: Final = "admin.password"
_ADMIN_CREDENTIAL: Final = "admin.credential"
_HOST: Final = "127.0.0.1"
_READY_S: Final = 60.0
_STOP_S: Final = 60.0
_ASK_S: Final = 5.0
_RACKS: Final = "abc"
_NAMES: Final = (_HOST, "localhost")
_CERTIFICATE_DAYS: Final = 365
_DAYS_LEFT_MIN: Final = 30


def racks_of(count: int) -> list[str]:
    return [_RACKS[number % len(_RACKS)] for number in range(count)]


@dataclass(slots=True)
class LocalCluster:
    """The brokers of one cluster and their settings.

    Attributes:
        config: settings of `quiverlog broker` for all of them.
        brokers: by node id, from 1 on.
        was_formed: the brokers have met once, so each gets the others' addresses at its starts.
    """

    directory: Path
    cluster_id: str
    config: dict[str, str]
    brokers: dict[int, LocalBroker]
    was_formed: bool = False

    # --- making and finding ---------------------------------------------------------------------
    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        racks: Sequence[str],
        config: Mapping[str, str] | None = None,
        first_port: int | None = None,
        tls: bool = False,
        users: bool = False,
    ) -> LocalCluster:
        """Write the files of a new cluster, with one broker for each rack; nothing is started.

        Args:
            directory: absent or empty.
            racks: a label for each broker.
            config: settings for all brokers, by the keys of docs/config.md.
            first_port: the first of consecutive ports, two for each broker. None: free ones.
            tls: clients and brokers connect by TLS, with throw-away certificates.
            users: clients log in; there is an administrator, with a password of its own.

        Raises:
            LocalClusterFailed: the directory holds something; a port is taken.
        """
        assert 1 <= len(racks) <= BROKERS_MAX
        if directory.exists() and any(name for name in directory.iterdir()):
            raise LocalClusterFailed(f"{directory} is not empty, and holds no cluster.")
        ports = _ports(first_port, 2 * len(racks))
        with new_folder(directory):
            brokers = {
                node_id: _broker(directory, node_id, rack, ports[2 * node_id - 2 : 2 * node_id])
                for node_id, rack in enumerate(racks, 1)
            }
            cluster = cls(directory, secrets.token_hex(16), dict(config or {}), brokers)
            if tls:
                TlsFolder.make(cluster.tls.path, cluster.cluster_id, days=_CERTIFICATE_DAYS)
            write_private(cluster.secret_file, f"{make_secret()}\n")
            if users:
                cluster._make_admin()
            cluster._save()
        return cluster

    def _make_admin(self) -> None:
        password = make_secret()
        write_private(self.directory / _ADMIN_CREDENTIAL, credential_text(_ADMIN, password))
        write_private(self.directory / _ADMIN_PASSWORD, f"{password}\n")
        description = "tls = false\n"
        if self.has_tls:
            description = f'ca_file = "{self.tls.brokers_ca.relative_to(self.directory)}"\n'
        description += f'user = "{_ADMIN}"\npassword_file = "{_ADMIN_PASSWORD}"\n'
        # Last: with it the cluster has users.
        write_private(self.admin_file, description)

    @classmethod
    def find(cls, directory: Path) -> LocalCluster | None:
        """Return the cluster of a directory; None where none was made.

        Raises:
            LocalClusterFailed: its file cannot be read.
        """
        path = directory / _FILE
        try:
            stored = json.loads(path.read_text())
            brokers = {
                int(one["node_id"]): LocalBroker(
                    int(one["node_id"]),
                    str(one["rack"]),
                    str(one["listen"]),
                    str(one["http_listen"]),
                    directory / f"broker-{one['node_id']}",
                )
                for one in stored["brokers"]
            }
            return cls(
                directory,
                stored["cluster_id"],
                dict(stored["config"]),
                brokers,
                stored["was_formed"],
            )
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError) as error:
            raise LocalClusterFailed(f"{path} cannot be read: {error}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the cluster against other commands.

        Raises:
            LocalClusterFailed: another command has the lock.
        """
        with (self.directory / _LOCK).open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalClusterFailed(
                    f"Another command changes the cluster in {self.directory}; try again."
                ) from None
            yield

    # --- life -----------------------------------------------------------------------------------
    @property
    def secret_file(self) -> Path:
        """All brokers have this one; absent in a cluster that an older version made."""
        return self.directory / "secret"

    @property
    def tls(self) -> TlsFolder:
        return TlsFolder(self.directory / "tls")

    @property
    def has_tls(self) -> bool:
        return self.tls.path.exists()

    @property
    def admin_file(self) -> Path:
        """The security file of the administrator; absent in a cluster without users."""
        return self.directory / "admin.toml"

    @property
    def has_users(self) -> bool:
        return self.admin_file.exists()

    @property
    def security_file(self) -> Path | None:
        """Of clients that may do everything; None: they need none."""
        if self.has_users:
            return self.admin_file
        return self.tls.security_file if self.has_tls else None

    @property
    def security(self) -> Security:
        """How clients reach it."""
        if self.has_users:
            return Security.load(self.admin_file)
        return Security.load(self.tls.security_file) if self.has_tls else Security(tls=False)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers; clients step over those that do not run."""
        return ",".join(broker.listen for broker in self.brokers.values())

    def start(self, timeout_s: float = _READY_S) -> None:
        """Start what does not run, wake what is paused, and return when the cluster is ready.

        Ready: every broker takes clients, and the quorum survives the loss of one of three brokers
        (of two of five).

        Raises:
            LocalClusterFailed: a broker ended, or is not ready in time.
        """
        deadline_s = time.monotonic() + timeout_s
        for broker in self.brokers.values():
            if not broker.resume() and broker.state is ProcessState.ENDED:
                self.start_broker(broker.node_id)
        for broker in self.brokers.values():
            broker.wait_until_ready(max(0.0, deadline_s - time.monotonic()))
        self.wait_for_quorum(max(0.0, deadline_s - time.monotonic()))
        self.was_formed = True
        self._save()

    def start_broker(self, node_id: int) -> None:
        """Start one that does not run, and do not wait. Raises LocalClusterFailed, OSError."""
        options = [word for pair in self.config.items() for word in ("--set", "=".join(pair))]
        if self.secret_file.exists() and "cluster.secret.file" not in self.config:
            options += ["--cluster-secret-file", str(self.secret_file)]
        if self.has_tls:
            options += self._certified(node_id)
        if self.has_users:
            options += self._asking()
        # A new first broker with the others' addresses would wait for them; one that has lost its
        # disk, without them, would begin a second cluster.
        seeds = [f"{other.node_id}@{other.listen}" for other in self.brokers.values()]
        if len(seeds) > 1 and (node_id > 1 or self.was_formed):
            options += ["--controller-quorum-bootstrap-servers", ",".join(seeds)]
        self.brokers[node_id].start(["--cluster-id", self.cluster_id, *options])

    def _asking(self) -> list[str]:
        """Return the options of a broker whose clients log in."""
        settings = {"authentication": "required"}
        if not self.has_tls:
            settings["allow.plaintext"] = "true"  # All is on this machine.
        words = ["--admin-credential-file", str(self.directory / _ADMIN_CREDENTIAL)]
        for key, value in settings.items():
            if (name := f"listeners.default.{key}") not in self.config:
                words += ["--set", f"{name}={value}"]
        return words

    def _certified(self, node_id: int) -> list[str]:
        """Return the options of a broker with TLS; its certificate is renewed when it is old."""
        folder, name = self.tls, f"broker-{node_id}"
        if folder.days_left(name) < _DAYS_LEFT_MIN:
            folder.issue_broker(node_id, _NAMES, days=_CERTIFICATE_DAYS)
        settings = {
            "cert.file": folder.certificate(name),
            "key.file": folder.key(name),
            "client.ca.file": folder.brokers_ca,
            "client.auth": "wanted",  # of brokers; clients have none
        }
        prefix = "listeners.default.tls"
        return [w for key, value in settings.items() for w in ("--set", f"{prefix}.{key}={value}")]

    def wait_for_quorum(self, timeout_s: float = _READY_S) -> None:
        """Return when all brokers are registered and unfenced, and as many as may are voters.

        Raises:
            LocalClusterFailed: not in time.
        """
        count = len(self.brokers)
        # Brokers join as voters two at a time: their number stays odd.
        voters = min(count - 1 + count % 2, QUORUM_AUTO_VOTERS_MAX)

        def has_formed() -> bool:
            try:
                found = client.describe_cluster()
            except QuiverlogError:  # Brokers that start, or elect a leader, do not answer yet.
                return False
            unfenced = [one for one in found.brokers if not one.fenced]
            return len(unfenced) == count and len(found.voters) >= voters

        with self.client() as client:
            if not wait_until(has_formed, timeout_s):
                logs = ", ".join(str(broker.log) for broker in self.brokers.values())
                raise LocalClusterFailed(
                    f"The brokers form no quorum of {voters} after {timeout_s:g} s; logs: {logs}"
                )

    def client(self) -> Client:
        """Return a client; the caller closes it. Raises what `quiverlog.connect` does."""
        from quiverlog.client.client import connect

        return connect(self.bootstrap, request_timeout=_ASK_S, security=self.security)

    def add(self, rack: str | None = None, timeout_s: float = _READY_S) -> LocalBroker:
        """Start one more broker, and return when the others have registered it.

        Args:
            rack: its label; the next one by turns unless given.

        Raises:
            LocalClusterFailed: there are as many as there may be, or it is not ready in time.
        """
        if len(self.brokers) >= BROKERS_MAX:
            raise LocalClusterFailed(f"{BROKERS_MAX} brokers are the most for one machine.")
        deadline_s = time.monotonic() + timeout_s
        node_id = next(n for n in range(1, BROKERS_MAX + 1) if n not in self.brokers)
        label = racks_of(node_id)[-1] if rack is None else rack
        last = max(parse_address(one.http_listen).port for one in self.brokers.values())
        following = [last + 1, last + 2]
        ports = following if all(is_free(port, _HOST) for port in following) else _free_ports(2)
        made = self.brokers[node_id] = _broker(self.directory, node_id, label, ports)
        self._save()
        self.start_broker(node_id)
        made.wait_until_ready(max(0.0, deadline_s - time.monotonic()))
        self.wait_for_quorum(max(0.0, deadline_s - time.monotonic()))
        self.was_formed = True
        self._save()
        return made

    def remove_broker(self, node_id: int) -> None:
        """Remove a broker that was decommissioned, with its files.

        Raises:
            LocalClusterFailed: it runs, is still registered, or the cluster does not answer.
        """
        broker = self.brokers[node_id]
        if broker.state is not ProcessState.ENDED:
            raise LocalClusterFailed(f"Broker {node_id} runs: stop it first.")
        try:
            with self.client() as client:
                known = [one.node_id for one in client.describe_cluster().brokers]
        except QuiverlogError as error:
            raise LocalClusterFailed(f"The other brokers do not answer: {error}") from error
        if node_id in known:
            raise LocalClusterFailed(
                f"Broker {node_id} belongs to the cluster: quiverlog cluster decommission {node_id}"
            )
        del self.brokers[node_id]
        self._save()
        shutil.rmtree(broker.directory, ignore_errors=True)

    def stop(self, timeout_s: float = _STOP_S) -> int:
        """Stop all that run, one after the other: each hands over. Returns how many ran.

        Raises:
            LocalClusterFailed: one does not end in time.
        """
        return sum(broker.stop(timeout_s) for broker in reversed(self.brokers.values()))

    def remove(self) -> None:
        """Kill what runs, and remove the cluster's files, data and all; others' files stay."""
        for broker in self.brokers.values():
            broker.kill()
            shutil.rmtree(broker.directory, ignore_errors=True)
        shutil.rmtree(self.tls.path, ignore_errors=True)
        admins = (_ADMIN_CREDENTIAL, _ADMIN_PASSWORD, self.admin_file.name)
        for name in (_FILE, _LOCK, self.secret_file.name, *admins):
            (self.directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # Files of others are there.
            self.directory.rmdir()

    def _save(self) -> None:
        brokers = [
            {
                "node_id": one.node_id,
                "rack": one.rack,
                "listen": one.listen,
                "http_listen": one.http_listen,
            }
            for one in self.brokers.values()
        ]
        stored = {
            "cluster_id": self.cluster_id,
            "config": self.config,
            "was_formed": self.was_formed,
            "brokers": brokers,
        }
        temporary = self.directory / f"{_FILE}.new"
        temporary.write_text(json.dumps(stored, indent=2) + "\n")
        temporary.replace(self.directory / _FILE)


def _broker(directory: Path, node_id: int, rack: str, ports: Sequence[int]) -> LocalBroker:
    clients, http = (f"{_HOST}:{port}" for port in ports)
    return LocalBroker(node_id, rack, clients, http, directory / f"broker-{node_id}")


def _ports(first: int | None, count: int) -> list[int]:
    if first is None:
        return _free_ports(count)
    ports = list(range(first, first + count))
    taken = [port for port in ports if not is_free(port, _HOST)]
    if taken:
        numbers = ", ".join(map(str, taken))
        raise LocalClusterFailed(f"Taken already at {_HOST}: port {numbers}. Choose another range.")
    return ports


def _free_ports(count: int) -> list[int]:
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port(_HOST)] = None
    return list(found)
