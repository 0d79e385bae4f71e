"""Brokers in containers of the project's own image: one, or three that form a cluster.

Owns the containers, their network, and the faults that an engine can do to them. Each broker of a
cluster has two listeners: `default`, published on a fixed port of 127.0.0.1, which is what it
advertises to clients outside, and `internal`, by its name in the network, where the brokers meet.
Every container has a label, so that what a test run leaves behind can be found and removed.

Not here: what tests do with the brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.ports import free_port
from tests.support.until import until

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # The reaper is an image of its own.
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

if TYPE_CHECKING:
    from docker.models.containers import Container

__all__ = ["ContainerCluster", "broker", "container_of"]

LABEL = {"quiverlog.test": "container"}
CLUSTER_ID = "in-containers"
CLIENT_PORT, INTERNAL_PORT = 9292, 9294
READY_S = 60.0
_POLL_S = 0.05


def container_of(broker: DockerContainer) -> Container:
    """The engine's view, with the state of this moment."""
    found = broker.get_wrapped_container()
    found.reload()
    return found


def publish(container: DockerContainer, port: int) -> None:
    """Clients of this machine, and of no other, reach the broker there, also after a restart."""
    container.ports[f"{CLIENT_PORT}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]


def _is_ready(container: DockerContainer) -> bool:
    found = container_of(container)
    assert found.status == "running", found.logs(tail=20).decode()
    return b" ready: clients " in found.logs(tail=20)


@contextmanager
def broker(image: str, port: int = 0, **more: Any) -> Iterator[DockerContainer]:
    """One broker, ready, as locked up as a container can be; removed at the end.

    Args:
        port: where clients of this machine reach it; 0 for nowhere.
        more: arguments of docker's `create`.
    """
    container = DockerContainer(image)
    if port:
        publish(container, port)
        container.with_env("QUIVERLOG_ADVERTISE", f"127.0.0.1:{port}")
    container.with_kwargs(
        labels=LABEL, read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"], **more
    )
    with container:
        until(lambda: _is_ready(container), "the broker is ready")
        yield container


class ContainerCluster:
    """Three brokers in the racks a, b and c; a context manager.

    Attributes:
        brokers: by node id.
        bootstrap: for clients outside of the network.
        internal: for clients inside.
    """

    def __init__(self, image: str, racks: Sequence[str] = "abc") -> None:
        self._image = image
        self._racks = dict(enumerate(racks, 1))
        self._stack = ExitStack()
        self._ports = {node_id: free_port() for node_id in self._racks}
        self.brokers: dict[int, DockerContainer] = {}

    def __enter__(self) -> ContainerCluster:
        with ExitStack() as stack:
            self._network = stack.enter_context(Network(docker_network_kw={"labels": LABEL}))
            for node_id in self._racks:
                self.brokers[node_id] = stack.enter_context(self._broker(node_id))
            for container in self.brokers.values():
                until(lambda one=container: _is_ready(one), "all brokers are ready")  # type: ignore[misc]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _broker(self, node_id: int) -> DockerContainer:
        container = DockerContainer(self._image)
        container.with_network(self._network).with_network_aliases(self._name(node_id))
        container.with_envs(
            QUIVERLOG_NODE_ID=str(node_id),
            QUIVERLOG_CLUSTER_ID=CLUSTER_ID,
            QUIVERLOG_RACK=self._racks[node_id],
            QUIVERLOG_ADVERTISE=self.outside(node_id),
            QUIVERLOG_LISTENERS_INTERNAL_BIND=f"0.0.0.0:{INTERNAL_PORT}",
            QUIVERLOG_LISTENERS_INTERNAL_ADVERTISE=self.inside(node_id),
            QUIVERLOG_INTER_BROKER_LISTENER="internal",
        )
        if node_id > 1:
            seeds = f"1@{self.inside(1)}"
            container.with_env("QUIVERLOG_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS", seeds)
        publish(container, self._ports[node_id])
        return container.with_kwargs(labels=LABEL, hostname=self._name(node_id))

    # --- addresses -----------------------------------------------------------------------------
    @staticmethod
    def _name(node_id: int) -> str:
        return f"broker-{node_id}"

    def inside(self, node_id: int) -> str:
        """Where clients and brokers in the network find a broker."""
        return f"{self._name(node_id)}:{INTERNAL_PORT}"

    def outside(self, node_id: int) -> str:
        """Where clients of this machine find a broker."""
        return f"127.0.0.1:{self._ports[node_id]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.outside, self._racks))

    @property
    def internal(self) -> str:
        return ",".join(map(self.inside, self._racks))

    # --- faults --------------------------------------------------------------------------------
    @contextmanager
    def killed(self, node_id: int) -> Iterator[None]:
        """SIGKILL; started again at the end, on its volume."""
        container_of(self.brokers[node_id]).kill("SIGKILL")
        yield
        container_of(self.brokers[node_id]).start()

    @contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """Frozen: it neither answers nor closes a connection."""
        container_of(self.brokers[node_id]).pause()
        yield
        container_of(self.brokers[node_id]).unpause()

    @contextmanager
    def cut_off(self, node_id: int) -> Iterator[None]:
        """Without a network: neither brokers nor clients reach it, and its process goes on."""
        found = container_of(self.brokers[node_id])
        self._network._unwrap_network.disconnect(found)
        yield
        self._network.connect(found.id, [self._name(node_id)])

    # --- clients inside ------------------------------------------------------------------------
    def run_inside(self, *command: str, stdin: str = "") -> str:
        """Run `quiverlog COMMAND...` in a container of its own in the network; what it printed."""
        script = 'printf "%s" "$STDIN" | quiverlog "$@"'
        container = DockerContainer(self._image, command=["-c", script, "quiverlog", *command])
        container.with_network(self._network)
        container.with_envs(STDIN=stdin, QUIVERLOG_BOOTSTRAP_SERVER=self.internal)
        container.with_kwargs(labels=LABEL, entrypoint="sh")
        with container:
            found = container_of(container)
            code = found.wait(timeout=READY_S)["StatusCode"]
            output = found.logs(stdout=True, stderr=False).decode()
            assert code == 0, found.logs().decode()
        return output
