"""`quiverlog doctor`: checks what a broker and Spark need, and whether the brokers answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quiverlog.addresses import parse_address
from quiverlog.cli.console.failures import ExitCode, one_line
from quiverlog.cli.console.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.console.output import print_json
from quiverlog.cli.console.security import chosen_security
from quiverlog.installing import install_line

if TYPE_CHECKING:
    from quiverlog.cli.console.probes import Probe
    from quiverlog.client.admin.topics import BrokerSetting
    from quiverlog.client.client import Client
    from quiverlog.errors import QuiverlogError

    Settings = Mapping[str, BrokerSetting]

__all__ = ["Finding", "doctor", "java_problem"]

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
PYSPARK_MIN = (4, 0)
_PROBE_S = 30.0
_TLS_S = 5.0
_DAY_S = 86_400
_DAYS_MIN = 30
"""What ends sooner is to be renewed."""

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` is empty when there is nothing to do."""

    check: str
    status: str
    detail: str
    advice: str = ""


@click.command()
@click.option("--no-broker", is_flag=True, help="Do not look for a broker.")
@click.option("--no-spark", is_flag=True, help="Do not look at Java and PySpark.")
@bootstrap_option
@format_option()
@debug_option
def doctor(
    no_broker: bool, no_spark: bool, bootstrap: str, timeout_s: float, output_format: str
) -> int:
    """Check Python, Java, PySpark, every broker's advertised address, certificates and users.

    Exit code 4 if there is a problem.
    """
    findings = list(_python())
    if not no_spark:
        findings += [_java(), _pyspark(), *_workers(), _worker_sockets()]
    if not no_broker:
        findings += _brokers(bootstrap, timeout_s)
    failed = any(finding.status == PROBLEM for finding in findings)
    if output_format == "json":
        print_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    return ExitCode.PROBLEMS_FOUND if failed else ExitCode.OK


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.status:<7}  {finding.check:<{width}}  {one_line(finding.detail)}")
        if finding.advice:
            print(f"{'':<7}  {'':<{width}}  -> {one_line(finding.advice)}")


def _python() -> Iterator[Finding]:
    running = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info[:2] < PYTHON_MIN
    yield Finding(
        "Python",
        PROBLEM if old else OK,
        f"{running} ({sys.executable})",
        "quiverlog needs Python 3.11 or newer." if old else "",
    )
    for package, extra, status in (
        ("quiverlog", "", PROBLEM),
        ("pyarrow", "", PROBLEM),
        ("msgspec", "", PROBLEM),
        ("fastcrc", "", PROBLEM),
        ("uvloop", "broker", WARNING),
    ):
        found = _installed(package)
        if found is None:
            yield Finding(package, status, "not installed", install_line(extra, package))
        else:
            yield Finding(package, OK, found)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def java_problem() -> str | None:
    """Return why Spark cannot start a JVM, with the line to type; else None."""
    finding = _java()
    return None if finding.status == OK else f"{finding.detail} {finding.advice}"


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"Spark needs Java {JAVA_MIN} or newer: {_java_install_line()}"
    if path is None:
        return Finding("Java", PROBLEM, "There is no `java` on PATH.", advice)
    try:
        # `java -version` writes to stderr.
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if home:
            advice = f"Correct or unset JAVA_HOME. {advice}"
        return Finding("Java", PROBLEM, f"{path} does not run: {error}.", advice)
    found = java_major(done.stderr + done.stdout)
    if found is None:
        return Finding("Java", PROBLEM, f"{path} prints no version.", advice)
    if found < JAVA_MIN:
        return Finding("Java", PROBLEM, f"{path} is Java {found}.", advice)
    return Finding("Java", OK, f"{found} ({path})")


def java_major(text: str) -> int | None:
    """Return the major version: 8 of `1.8.0_402`, 17 of `17.0.15`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _java_install_line() -> str:
    lines = {
        "apt-get": f"apt-get install -y openjdk-{JAVA_MIN}-jre-headless",
        "dnf": f"dnf install -y java-{JAVA_MIN}-openjdk-headless",
        "brew": f"brew install openjdk@{JAVA_MIN}",
    }
    return next((line for tool, line in lines.items() if shutil.which(tool)), "see adoptium.net")


def _pyspark() -> Finding:
    found = _installed("pyspark") or _installed("pyspark-client")
    if found is None:
        return Finding(
            "PySpark",
            PROBLEM,
            "not installed",
            f"{install_line('spark', 'pyspark')} (not for brokers)",
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < PYSPARK_MIN:
        advice = f"quiverlog needs PySpark 4.0 or newer: {install_line('spark', 'pyspark')}"
        return Finding("PySpark", PROBLEM, found, advice)
    return Finding("PySpark", OK, found)


def _worker_sockets() -> Finding:
    check, setting = "worker sockets", "spark.python.unix.domain.socket.enabled"
    if os.environ.get("PYSPARK_UDS_MODE", "").lower() == "true":
        return Finding(check, OK, "Unix domain, from PYSPARK_UDS_MODE")
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and str(Path(home) / "conf"))
    defaults = Path(folder or "") / "spark-defaults.conf"
    try:
        text = defaults.read_text(errors="replace") if folder else ""
    except OSError:
        text = ""
    if re.search(rf"^\s*{re.escape(setting)}[\s=:]+true\s*$", text, re.MULTILINE | re.IGNORECASE):
        return Finding(check, OK, f"Unix domain, from {defaults}")
    # TCP is no problem: this data source's tasks do not wait.
    return Finding(
        check,
        OK,
        f"TCP, unless the application sets {setting}",
        f"Small micro-batches: {setting}=true (PySpark 4.1 and newer) spares other Python tasks "
        "than ours a delay of up to 40 ms.",
    )


_PROBE = """
import importlib, json, pkgutil, sys, traceback
found = {"version": list(sys.version_info[:3]), "executable": sys.executable, "failing": {}}
for module in pkgutil.iter_modules():
    if module.name.startswith("pyspark_"):
        try:
            source = getattr(importlib.import_module(module.name), "DefaultSource", None)
            if module.name == "pyspark_quiverlog":
                found["name"] = None if source is None else source.name()
        except BaseException as error:
            found["failing"][module.name] = type(error).__name__ + ": " + str(error)
print(json.dumps(found))
"""


def _workers() -> list[Finding]:
    """Check the interpreter of Spark's workers, which is the one that looks for data sources."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    interpreter = chosen or "python3"
    origin = "PYSPARK_PYTHON" if chosen else "python3 on PATH"
    check = "Spark's workers"
    use_this = f"export PYSPARK_PYTHON={sys.executable}"
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return [Finding(check, PROBLEM, f"{interpreter} ({origin}): {error}", use_this)]
    return list(_judge_workers(found, check, origin, use_this))


def _judge_workers(
    found: dict[str, Any], check: str, origin: str, use_this: str
) -> Iterator[Finding]:
    running = ".".join(map(str, found["version"]))
    where = f"{running} ({found['executable']}, from {origin})"
    if tuple(found["version"][:2]) != sys.version_info[:2]:
        yield Finding(check, PROBLEM, where, f"Driver and workers need the same Python: {use_this}")
    else:
        yield Finding(check, OK, where)
    for module, error in found["failing"].items():
        yield Finding(
            "discovery",
            PROBLEM,
            f"{module} cannot be imported, which breaks every Python data source: {error}",
            f"Repair or uninstall {module}.",
        )
    if found.get("name") == "quiverlog":
        yield Finding("discovery", OK, 'format("quiverlog") is found by the workers')
    elif "pyspark_quiverlog" not in found["failing"]:
        yield Finding(
            "discovery",
            PROBLEM,
            'format("quiverlog") is not found by the workers',
            f"{use_this}, or call pyspark_quiverlog.register(spark)",
        )


def _brokers(bootstrap: str, timeout_s: float) -> list[Finding]:
    from quiverlog.cli.cluster.group import groups_that_stand_still
    from quiverlog.cli.console.cluster_health import (
        as_known,
        failed_writes,
        fewer_replicas,
        not_raised,
        two_processes,
        unfinished_raises,
        with_fewer_replicas,
    )
    from quiverlog.cli.console.cluster_health import findings as cluster_findings
    from quiverlog.cli.console.probes import seen_or_failure
    from quiverlog.cli.console.staged_rows import staging_rooms, staging_warnings
    from quiverlog.errors import QuiverlogError

    began_s = time.monotonic()
    try:
        seen = seen_or_failure(bootstrap, timeout_s)
        found, few, raises, secured, staging, still = seen.found, [], [], [], [], []
        if found.is_current:
            with open_client(
                bootstrap, timeout_s=timeout_s, skipped=seen.silent, began_s=began_s
            ) as client:
                by_name = client.metadata().topics
                topics = by_name.values()
                rooms, _ = staging_rooms(client, by_name)
                staging = staging_warnings(rooms, datetime.now(UTC))
                still = groups_that_stand_still(client, by_name, datetime.now(UTC))
                few, raises = with_fewer_replicas(found, topics), unfinished_raises(found, topics)
                settings = _settings(client, [one.node_id for one in found.brokers])
                secured = [*_users(client, settings)]
                if len(found.brokers) > 1:
                    secured += _unproved(settings)
    except QuiverlogError as error:
        return [Finding("bootstrap", PROBLEM, f"{bootstrap}: {error.message}", _remedy(error))]
    findings = [
        Finding(
            "bootstrap",
            OK,
            f"{bootstrap}: cluster {found.cluster_id}, {len(found.brokers)} broker(s), "
            f"{found.topics} topic(s)",
        )
    ]
    by_address = {f"{one.host}:{one.port}": one.node_id for one in found.brokers}
    findings += [_answers(one, by_address.get(one.address)) for one in seen.probes]
    findings += _certificates([one.address for one in seen.probes if one.answers])
    if found.is_current:
        findings.append(Finding("controller", OK, f"as known to {as_known(found)}"))
    else:
        text = next(one.text for one in cluster_findings(found) if not one.is_warning)
        findings.append(Finding("controller", PROBLEM, f"as known to {as_known(found)}", text))
    findings += [
        Finding("brokers", PROBLEM, *failed_writes(one)) for one in found.brokers if one.faulted
    ]
    findings += [
        Finding("brokers", PROBLEM, *two_processes(one)) for one in found.brokers if one.second_at
    ]
    if few:
        findings.append(Finding("replicas", WARNING, *fewer_replicas(seen.as_probed, few)))
    if raises:
        findings.append(Finding("replicas", WARNING, *not_raised(found, raises)))
    findings += [Finding("transactions", WARNING, *one) for one in staging]
    findings += [Finding("groups", WARNING, *one) for one in still]
    return findings + secured


def _certificates(addresses: list[str]) -> Iterator[Finding]:
    """Report when brokers' certificates end, and those of the security file."""
    security = chosen_security()
    if security is None or not security.tls:
        return
    from quiverlog.client.drivers.tls import ClientTls
    from quiverlog.errors import QuiverlogError
    from quiverlog.tls import BadTlsFiles, certificates_in

    tls = ClientTls(security)
    for text in addresses:
        address = parse_address(text)
        try:
            plain = socket.create_connection(address, _TLS_S)
            shown = tls.connect(plain, address, time.monotonic() + _TLS_S)
            ends_s = shown.certificate_ends_s
            shown.close()
        except (OSError, QuiverlogError):
            continue  # It has answered a moment ago: another finding reports what is lasting.
        yield _ends(f"the certificate of {text}", ends_s)
    for what, path in (("certificate", security.cert_file), ("authority", security.ca_file)):
        with contextlib.suppress(BadTlsFiles):
            ends = [one.not_after_s for one in certificates_in(path)] if path else []
            if ends:
                yield _ends(f"the {what} in {path}", min(ends))


def _ends(what: str, ends_s: float) -> Finding:
    date = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%d")
    days = int((ends_s - time.time()) // _DAY_S)
    if days >= _DAYS_MIN:
        return Finding("TLS", OK, f"{what} ends on {date}")
    advice = "docs/security.md says how to renew it."
    if ends_s <= time.time():
        return Finding("TLS", PROBLEM, f"{what} has ended on {date}", advice)
    return Finding("TLS", WARNING, f"{what} ends on {date}, in {days} days", advice)


def _remedy(error: QuiverlogError) -> str:
    from quiverlog.errors import AuthenticationFailed, ConnectionFailed, LoginMissing

    if isinstance(error, ConnectionFailed):
        return "Start one with `quiverlog broker`, or name another with --bootstrap-server."
    if isinstance(error, (AuthenticationFailed, LoginMissing)):
        # No broker answers this before a login.
        return f"{error.hint} A broker logs at its start when the cluster has no user."
    return error.hint


def _settings(client: Client, node_ids: list[int]) -> dict[int, Settings]:
    """Return the settings of each broker; one that does not answer is left out."""
    from quiverlog.errors import QuiverlogError

    found: dict[int, Settings] = {}
    for node_id in node_ids:
        # It is of an older version, or away, which another finding reports.
        with contextlib.suppress(QuiverlogError):
            found[node_id] = client.describe_configs(node_id).settings
    return found


def _unproved(settings: Mapping[int, Settings]) -> Iterator[Finding]:
    """Report brokers that take others without proof."""
    without: list[int] = []
    lenient: list[int] = []
    for node_id, keys in settings.items():
        if not keys["cluster.secret.file"].value:
            without.append(node_id)
        elif keys["cluster.secret.required"].value == "false":
            lenient.append(node_id)
    for found, what in ((without, "have no secret"), (lenient, "require no proof")):
        if found:
            detail = f"broker(s) {_listed(found)} {what}: any program may speak to them as a broker"
            yield Finding("secret", WARNING, detail, "docs/security.md has the steps.")


def _users(client: Client, settings: Mapping[int, Settings]) -> Iterator[Finding]:
    """Report listeners for users where there is none, and super users of some brokers only."""
    from quiverlog.errors import QuiverlogError

    asking = {node_id: _listeners_of_users(keys) for node_id, keys in settings.items()}
    asking = {node_id: names for node_id, names in asking.items() if names}
    with contextlib.suppress(QuiverlogError):
        if asking and _sees_users(client) and not client.list_users():
            names = ", ".join(sorted(set().union(*asking.values())))
            yield Finding(
                "users",
                PROBLEM,
                f"broker(s) {_listed(asking)} ask for logins at the listener(s) {names}, and the"
                " cluster has no user: no client can log in there",
                "Make the first one (docs/security.md): by `admin.credential.file`, or"
                " `quiverlog user create NAME --admin` as a user of `super.users`.",
            )
    supers = {node_id: _parts(keys["super.users"].value) for node_id, keys in settings.items()}
    if len(set(supers.values())) > 1:
        shown = "; ".join(
            f"broker {node_id}: {', '.join(sorted(names)) or 'none'}"
            for node_id, names in supers.items()
        )
        yield Finding(
            "users",
            WARNING,
            f"`super.users` differs: {shown}",
            "Such a user can mend users and rules only while the controller is a broker that names"
            " it: give every broker the same, and send each SIGHUP.",
        )


def _sees_users(client: Client) -> bool:
    """Return whether the controller, which lists users, shows this caller all of them."""
    controller = client.describe_cluster().controller
    principal = client.who_am_i().principal
    found = client.check_access(principal, "describe", "cluster", broker=controller)
    return found.is_super_user or not found.is_on


def _listeners_of_users(keys: Settings) -> set[str]:
    """Return the listeners at which passwords and tokens alone count."""
    names = set()
    for key, asked in keys.items():
        name = key.removeprefix("listeners.").removesuffix(".authentication")
        if key != f"listeners.{name}.authentication" or asked.value == "none":
            continue
        mechanisms = keys.get(f"listeners.{name}.mechanisms")
        # The user that a certificate names need not be made.
        if mechanisms is None or "CERTIFICATE" not in _parts(mechanisms.value.upper()):
            names.add(name)
    return names


def _parts(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",")) - {""}


def _listed(node_ids: Iterable[int]) -> str:
    return ", ".join(map(str, node_ids))


def _answers(one: Probe, node_id: int | None) -> Finding:
    if node_id is None:
        check, what = "address", f"{one.address} was given"
        advice = "Start the broker there, or take the address out."
    else:
        check, what = f"broker {node_id}", f"advertised as {one.address}"
        advice = (
            "Start it if it does not run, or set the broker's `advertise` to an address that "
            "clients can reach."
        )
    if not one.answers:
        return Finding(check, PROBLEM, f"{what}, does not answer from here: {one.failure}.", advice)
    return Finding(check, OK, f"{what}, answers in {one.seconds * 1000:.1f} ms")
