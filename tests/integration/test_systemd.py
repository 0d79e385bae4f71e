"""The systemd unit in `ops/systemd`, and what a broker reports to the program that started it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import quiverlog
from quiverlog.local.secret_file import credential_text, make_secret
from tests.support.broker import COMMAND, BrokerProcess
from tests.support.tls import write_files

pytestmark = pytest.mark.process

OPS = Path(__file__).resolve().parents[2] / "ops" / "systemd"
UNIT = OPS / "quiverlog.service"
SECRETS = OPS / "quiverlog-secrets.conf"
ADMIN_PASSWORD = "of-the-administrator"
EXPOSURE_MAX = 2.0
"""Of 10 (`systemd-analyze security`); a service without such settings has 9.6."""
FORBID_WRITABLE_CODE = """
import ctypes, os, sys
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine"
)


def analyze(*words: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def values_of(text: str, key: str) -> list[str]:
    """All values of a key of the unit."""
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """systemd also looks whether the program is there, so this environment's replaces it."""
    (program,) = (command.split()[0] for command in values_of(UNIT.read_text(), "ExecStart"))
    here = Path(sys.executable).with_name("quiverlog")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, str(here)))
    drop_in = tmp_path / f"{UNIT.name}.d" / "secrets.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(SECRETS.read_text())
    assert analyze("verify", "--man=no", str(copy)) == ""


@needs_systemd
def test_the_unit_leaves_a_broker_little_to_do_harm_with() -> None:
    threshold = str(round(EXPOSURE_MAX * 10))
    analyze("security", "--offline=true", f"--threshold={threshold}", str(UNIT))


def test_a_broker_reports_its_state(tmp_path: Path) -> None:
    """Ready when clients may connect, alive while it runs, stopping after the signal."""
    name = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(name))
        supervisor.settimeout(30.0)
        env = {"NOTIFY_SOCKET": str(name), "WATCHDOG_USEC": "100000"}
        with BrokerProcess(env=env, command=_without_writable_code()) as broker:
            messages = [supervisor.recv(100)]
            while messages[-1] != b"READY=1":
                messages.append(supervisor.recv(100))
            assert set(messages[:-1]) == {b"WATCHDOG=1"}, "it is alive before it is ready"
            assert supervisor.recv(100) == b"WATCHDOG=1"
            broker.terminate()
            while (printed := supervisor.recv(100)) != b"STOPPING=1":
                assert printed == b"WATCHDOG=1"
            assert broker.wait() == 0


def _without_writable_code() -> tuple[str, ...]:
    """The broker under what MemoryDenyWriteExecute asks of the kernel, where it can be asked."""
    assert values_of(UNIT.read_text(), "MemoryDenyWriteExecute") == ["yes"]
    wrapped = (sys.executable, "-c", FORBID_WRITABLE_CODE)
    probe = subprocess.run([*wrapped, "-c", "pass"], check=False, timeout=30, capture_output=True)
    return COMMAND if probe.returncode else (*wrapped, *COMMAND[1:])


def test_a_supervisor_that_is_gone_is_no_reason_to_end() -> None:
    missing = f"@nobody-{os.getpid()}"
    with BrokerProcess(env={"NOTIFY_SOCKET": missing, "WATCHDOG_USEC": "20000"}) as broker:
        assert broker.stop() == 0


def test_the_configuration_of_the_unit_is_one(tmp_path: Path) -> None:
    """All its keys are taken; its data directory is the one that the unit makes."""
    text = (OPS / "quiverlog.toml").read_text()
    (state,) = values_of(UNIT.read_text(), "StateDirectory")
    assert f'data.dir = "/var/lib/{state}"' in text
    config = tmp_path / "quiverlog.toml"
    config.write_text(text)
    with BrokerProcess(arguments=["--config", str(config)]) as broker:
        assert broker.running


def test_a_broker_has_its_secrets_from_systemd(tmp_path: Path) -> None:
    """A directory of credentials, filled by the drop-in, is all that a broker needs."""
    text = SECRETS.read_text()
    files = write_files(tmp_path, "of-root")
    made = {
        "cluster-secret": f"{make_secret()}\n",
        "admin.credential": credential_text("admin", ADMIN_PASSWORD),
        "broker.pem": Path(files.cert).read_text(),
        "broker.key": Path(files.key).read_text(),
        "brokers-ca.pem": Path(files.ca).read_text(),
    }
    names = {line.partition(":")[0] for line in values_of(text, "LoadCredential")}
    assert names == made.keys()
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for name, content in made.items():
        (credentials / name).write_text(content)
        (credentials / name).chmod(0o440)
    env = dict(
        line.replace("%d", str(credentials)).split("=", 1)
        for line in values_of(text, "Environment")
    )
    security = quiverlog.Security(ca_file=files.ca, user="admin", password=ADMIN_PASSWORD)
    with BrokerProcess(env=env) as broker:
        with quiverlog.connect(broker.bootstrap, security=security) as client:
            assert client.who_am_i().is_super
        with pytest.raises(quiverlog.errors.LoginMissing):
            quiverlog.connect(broker.bootstrap, security=quiverlog.Security(ca_file=files.ca))
