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

from tests.support.broker import COMMAND, BrokerProcess

pytestmark = pytest.mark.process

OPS = Path(__file__).resolve().parents[2] / "ops" / "systemd"
UNIT = OPS / "quiverlog.service"
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
