"""examples/secured, as its README has it typed: TLS, logins, a user that may do little; renewal."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quiverlog
from tests.containers.test_compose import command
from tests.support.pages import ROOT, blocks
from tests.support.ports import free_port
from tests.support.until import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

FILES = ("compose.yaml", "examples/secured/compose.yaml")
TYPED_S = 180.0
# The image is built already.
DOCKER = """
docker() {
    case "$1" in
    build) ;;
    compose) shift; %s "$@" ;;
    esac
}
"""


@pytest.fixture
def typed(image: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Types lines in a directory with the files alone; what they print."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    ports = {f"QUIVERLOG_PORT_OF_BROKER_{n}": str(free_port()) for n in (1, 2, 3)}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("QUIVERLOG_")} | ports
    environ |= {
        "QUIVERLOG_IMAGE": image,
        "COMPOSE_PROJECT_NAME": f"quiverlog-{uuid.uuid4().hex[:8]}",
        "COMPOSE_FILE": ":".join(FILES),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    compose = " ".join(("command", *command()))

    def run(script: str) -> str:
        text = script.replace("127.0.0.1:9292", f"127.0.0.1:{ports['QUIVERLOG_PORT_OF_BROKER_1']}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail"], input=DOCKER % compose + text, cwd=tmp_path, env=environ,
            capture_output=True, text=True, timeout=TYPED_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        yield run
    finally:
        run("docker compose down --volumes --timeout 30")


def three_vote(bootstrap: str, security: Path) -> bool:
    try:
        with quiverlog.connect(bootstrap, security=str(security)) as client:
            return len(client.describe_cluster().voters) == 3
    except quiverlog.QuiverlogError:
        return False


def shown(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=10)


def test_the_readme_of_the_secured_cluster(typed: Callable[[str], str], tmp_path: Path) -> None:
    make, use = (block.text for block in blocks(ROOT / "examples/secured/README.md", "sh"))
    typed(make)
    pki = tmp_path / "pki"
    address = typed("docker compose port broker-1 9292").strip()
    until(lambda: three_vote(address, pki / "admin.toml"), "three voters")
    output = typed(use)
    assert re.search(r'^\{"id": ?1\}$', output, re.MULTILINE), output
    assert "alice may not" in output
    with pytest.raises(quiverlog.errors.LoginMissing):
        quiverlog.connect(address, security=str(pki / "client.toml"))
    before = shown(address)
    typed("quiverlog security issue pki --broker 1\ndocker compose up -d keys")
    until(lambda: shown(address) != before, "the new certificate is shown")
    assert three_vote(address, pki / "admin.toml")
