"""The broker's configuration: precedence, refusals that name their place, the generated page."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from quiverlog.addresses import Address
from quiverlog.broker_keys import CONFIG_KEYS, env_of
from quiverlog.core.controller.configs import CONFIG_DEFS
from quiverlog.errors import InvalidConfig
from quiverlog.limits import CLUSTER_ID_CHARS_MAX, HOST_CHARS_MAX, RACK_CHARS_MAX
from quiverlog.server.config.config import BrokerConfig, load_config
from quiverlog.server.config.docs import render
from quiverlog.server.process.broker_server import node_config
from quiverlog.settings import InvalidValue

ROOT = Path(__file__).resolve().parents[4]


def refusal(
    tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object
) -> str:
    path = tmp_path / "quiverlog.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        load_config(path, environ=env, flags={k.replace("__", "."): v for k, v in flags.items()})
    return str(caught.value)


def test_no_configuration_at_all() -> None:
    config = load_config()
    assert config.data_dir == "./quiverlog-data"
    assert config.listen == Address("127.0.0.1", 9292)
    assert config.http_listen == Address("127.0.0.1", 9293)
    assert config.advertise is None
    assert config.topic_defaults == {}


def test_the_table_and_the_dataclass_have_the_same_fields() -> None:
    fields = {field.name for field in dataclasses.fields(BrokerConfig)}
    more = {"given", "listeners", "listeners_without_administration", "topic_defaults"}
    more |= {"authentication"}
    more |= {"listeners_tls", "listeners_without_local_reads"}
    assert fields == {key.field for key in CONFIG_KEYS.values()} | more


@pytest.mark.parametrize("key", CONFIG_KEYS.values(), ids=lambda key: key.key)
def test_every_default_is_allowed(key) -> None:  # type: ignore[no-untyped-def]
    key.parse(key.default)
    assert key.doc.endswith(".")


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text("connections.max = 10\nnode.id = 3\nrack = 'a'\n")
    env = {"QUIVERLOG_CONNECTIONS_MAX": "20", "QUIVERLOG_NODE_ID": "4"}
    config = load_config(path, environ=env, flags={"connections.max": "30", "rack": None})
    assert (config.connections_max, config.node_id, config.rack) == (30, 4, "a")
    assert config.fsync_threads == CONFIG_KEYS["fsync.threads"].default == 4


@pytest.mark.parametrize(
    "text",
    [
        'connections.idle.ms = 500\ntopic.defaults.retention.ms = 60_000\nlisten = "[::1]:7"',
        '[connections]\nidle.ms = 500\n[topic.defaults]\n"retention.ms" = 60000\n[listen_]\n',
        '"connections.idle.ms" = 500\n"topic.defaults.retention.ms" = "60000"\n',
        "[connections.idle]\nms = 500\n[topic]\ndefaults = {retention = {ms = 60000}}\n",
    ],
)
def test_toml_spellings_of_one_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(text.replace("[listen_]\n", ""))
    config = load_config(path)
    assert config.connections_idle_ms == 500
    assert config.topic_defaults == {"retention.ms": "60000"}


def test_toml_may_have_true_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "quiverlog.toml"
    unclean = "unclean.leader.election.enable"
    path.write_text(f"metrics.partition.offsets = true\ntopic.defaults.{unclean} = true\n")
    config = load_config(path, environ={"QUIVERLOG_LOCAL_READS": "false"})
    assert (config.metrics_partition_offsets, config.local_reads) == ("true", "false")
    assert config.topic_defaults == {unclean: "true"}
    # As `quiverlog config get` shows what the broker was started with.
    assert {given.value for given in config.given.values()} == {"true", "false"}


def test_addresses() -> None:
    key = CONFIG_KEYS["listen"]
    assert key.parse("[::1]:9292") == Address("::1", 9292)
    assert str(Address("::1", 9292)) == "[::1]:9292"
    assert load_config(flags={"http.listen": "off"}).http_listen is None
    for bad in ("9292", "host", "host:", ":9292", "host:port", "host:70000", "host:-1"):
        with pytest.raises(InvalidValue):
            key.parse(bad)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("node.id = 1\n\n# a comment\nconections.max = 3\n", 4, "is it `connections.max`?"),
        ("[connections]\nmax = 0\n", 2, "is 0, allowed is 1 to"),
        ("node.id = 1\n[connections]\n\nmax = '7x'\n", 4, "not a whole number"),
        ("[connections]\nmax = true\n", 2, "not a whole number"),
        ("connections.max = 1.5\n", 1, "not a whole number"),
        ("data.dir = 3\n", 1, "not text"),
        ("log.level = 'loud'\n", 1, "allowed are debug, info"),
        ("log.level = true\n", 1, "is 'true', allowed are debug, info"),
        ("local.reads = 1\n", 1, "is '1', allowed are true, false"),
        ("local.reads = [true]\n", 1, "is [True], not true, false"),
        ("topic.defaults.retention.ms = true\n", 1, "is 'true', not a whole number"),
        ("listen = '9292'\n", 1, "not host:port"),
        ("topic.defaults.retention.ms = 5\n", 1, "allowed is 1000 to"),
        ("topic.defaults.retentions.ms = 5\n", 1, "topic.defaults.retention.ms"),
        ("[topic.defaults]\ndurability = 'replicated'\n", 2, "one replica"),
        ("rack = '''\nx = 1\n'''\nnode.idd = 2\n", 4, "is it `node.id`?"),
        ("connections = {}\n", 1, "there is no such key"),
    ],
)
def test_refusals_name_file_and_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    message = refusal(tmp_path, text)
    assert f"quiverlog.toml:{line}: " in message
    assert what in message


def test_refusals_name_variable_or_flag(tmp_path: Path) -> None:
    assert "QUIVERLOG_CONECTIONS_MAX" in refusal(tmp_path, env={"QUIVERLOG_CONECTIONS_MAX": "1"})
    message = refusal(tmp_path, env={"QUIVERLOG_CONNECTIONS_MAX": "many"})
    assert "QUIVERLOG_CONNECTIONS_MAX is 'many', not a whole number" in message
    assert "--connections-max is '0'" not in refusal(tmp_path, connections__max="0")
    assert "--connections-max is 0, allowed" in refusal(tmp_path, connections__max="0")
    assert "--set what.ever" in refusal(tmp_path, what__ever="0")


def test_variables_of_clients_and_of_kubernetes_are_not_ours() -> None:
    for name in ("CONFIG", "BOOTSTRAP_SERVER", "SERVICE_HOST", "PORT", "PORT_9292_TCP_ADDR"):
        load_config(environ={f"QUIVERLOG_{name}": "x"})
    for name in ("PORTS", "SERVICES"):
        with pytest.raises(InvalidConfig):
            load_config(environ={f"QUIVERLOG_{name}": "x"})


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_no_key_is_ignored_in_the_environment(key: str) -> None:
    """A key called `client...`, `test...`, `demo...`, `bench...` or `service...` would be."""
    named = ""
    try:
        given = load_config(environ={env_of(key): "1"}).given
    except InvalidConfig as error:
        given, named = {}, str(error)
    assert key in given or env_of(key) in named


@pytest.mark.parametrize("key", CONFIG_DEFS.values(), ids=lambda key: key.key)
def test_every_topic_default_has_a_variable(key) -> None:  # type: ignore[no-untyped-def]
    value = key.choices[0] if key.choices else str(max(key.minimum, 1))
    if key.key == "max.message.bytes":
        value = "2048"
    name = "QUIVERLOG_TOPIC_DEFAULTS_" + key.key.replace(".", "_").upper()
    assert load_config(environ={name: value}).topic_defaults == {key.key: value}


def test_contradictions(tmp_path: Path) -> None:
    message = refusal(tmp_path, "listen = '127.0.0.1:7'\nhttp.listen = '127.0.0.1:7'\n")
    assert ":1: listen" in message
    assert ":2: http.listen" in message
    load_config(flags={"listen": "127.0.0.1:0", "http.listen": "127.0.0.1:0"})
    for listen, http in (("0.0.0.0:7", "127.0.0.1:7"), ("[::1]:7", "[::]:7")):
        with pytest.raises(InvalidConfig, match="cannot share port 7"):
            load_config(flags={"listen": listen, "http.listen": http})
    load_config(flags={"listen": "127.0.0.1:7", "http.listen": "127.0.0.2:7"})
    assert "advertise" in refusal(tmp_path, "advertise = 'host:0'\n")
    too_long = refusal(tmp_path, f"rack = '{'r' * (RACK_CHARS_MAX + 1)}'\n")
    assert "rack has 256 characters, at most 255" in too_long
    assert load_config(flags={"rack": "r" * RACK_CHARS_MAX}).rack == "r" * RACK_CHARS_MAX
    too_long = refusal(tmp_path, f"cluster.id = '{'c' * (CLUSTER_ID_CHARS_MAX + 1)}'\n")
    assert "cluster.id has 250 characters, at most 249" in too_long
    longest = "c" * CLUSTER_ID_CHARS_MAX
    assert load_config(flags={"cluster.id": longest}).cluster_id == longest
    assert "control characters" in refusal(tmp_path, 'cluster.id = "a\\u0007b"\n')
    assert "advertise" in refusal(tmp_path, f"advertise = '{'h' * (HOST_CHARS_MAX + 1)}:1'\n")
    assert "must listen" in refusal(tmp_path, listen="off")
    message = refusal(
        tmp_path, "frame.bytes.max = 16_000_000\n[topic.defaults]\nmax.message.bytes = 16_000_000\n"
    )
    assert ":1: frame.bytes.max" in message
    assert ":3: topic.defaults.max.message.bytes" in message


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0::0]"])
def test_no_client_is_sent_to_every_address(tmp_path: Path, host: str) -> None:
    error = refusal(tmp_path, f"advertise = '{host}:9292'\n")
    assert "advertise" in error
    assert "broker-1.example:9292" in error, "it names what to write instead"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0.0.0.1", "a-name"])
def test_one_address_may_be_advertised(host: str) -> None:
    found = load_config(flags={"advertise": f"{host}:9292"})
    assert found.advertise is not None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load_config(tmp_path / "missing.toml")
    assert "not TOML" in refusal(tmp_path, "a = = 3")
    assert "line 2" in refusal(tmp_path, "rack = 'x'\na = = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load_config(tmp_path / "binary.toml")


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "config.md").read_text()
    assert page == render(), "run: python -m quiverlog.server.config.docs > docs/config.md"
    for key in CONFIG_KEYS.values():
        assert f"| `{key.key}`" in page


# --- the quorum -----------------------------------------------------------------------------------
def test_roles_and_controllers(tmp_path: Path) -> None:
    config = load_config()
    assert config.process_roles == ("broker", "controller")
    assert config.controller_quorum_bootstrap_servers == {}
    path = tmp_path / "quiverlog.toml"
    path.write_text(
        "process.roles = 'controller, broker'\ncluster.id = 'c'\n"
        "controller.quorum.bootstrap.servers = '1@a:9292, 2@[::1]:3,'\n"
        "controller.quorum.moved.servers = '3@b:1'\n"
    )
    config = load_config(path)
    assert config.process_roles == ("broker", "controller")
    found = config.controller_quorum_bootstrap_servers
    assert found == {1: Address("a", 9292), 2: Address("::1", 3)}
    assert config.controller_quorum_moved_servers == {3: Address("b", 1)}
    node = node_config(config, {"default": Address("h", 1)})
    assert node.moved_controllers == {3: Address("b", 1)}
    assert node.controllers == found


@pytest.mark.parametrize("text", ["a:9292", "x@a:9292", "-1@a:1", "1@a", "1@a:1,1@b:1", "²@a:1"])
def test_a_controller_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, f"controller.quorum.bootstrap.servers = '{text}'\n")
    assert "quiverlog.toml:1: controller.quorum.bootstrap.servers" in error


def test_too_many_controllers_are_refused(tmp_path: Path) -> None:
    many = ",".join(f"{n}@a:{n}" for n in range(1, 18))
    assert "at most 16" in refusal(tmp_path, f"controller.quorum.bootstrap.servers = '{many}'\n")


@pytest.mark.parametrize("text", ["", "leader", "broker,broker", "broker;controller"])
def test_a_role_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    assert "broker,controller" in refusal(tmp_path, f"process.roles = '{text}'\n")


def test_a_broker_that_could_belong_to_no_quorum_is_refused(tmp_path: Path) -> None:
    seeds = "controller.quorum.bootstrap.servers = '1@a:1'\n"
    assert "`cluster.id`" in refusal(tmp_path, seeds)
    assert "bootstrap.servers" in refusal(tmp_path, "process.roles = 'broker'\n")
    (tmp_path / "good.toml").write_text(f"{seeds}cluster.id = 'c'\nprocess.roles = 'broker'\n")
    assert load_config(tmp_path / "good.toml").process_roles == ("broker",)


# --- staged rows ----------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 4, 256])
def test_partitions_for_staged_rows(tmp_path: Path, count: int) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(f"staged.partitions = {count}\n")
    node = node_config(load_config(path), {"default": Address("h", 1)})
    assert node.staged_partitions == count


@pytest.mark.parametrize("count", [-1, 1, 3, 257])
def test_too_few_or_too_many_of_them(tmp_path: Path, count: int) -> None:
    error = refusal(tmp_path, f"staged.partitions = {count}\n")
    assert f"quiverlog.toml:1: staged.partitions is {count}, allowed" in error


@pytest.mark.parametrize("count", [0, 1, 2**50])
def test_bytes_for_staged_rows(tmp_path: Path, count: int) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(f"staged.bytes.max = {count}\n")
    assert node_config(load_config(path), {"default": Address("h", 1)}).staged_bytes_max == count


@pytest.mark.parametrize("count", [-1, 2**50 + 1])
def test_too_few_or_too_many_bytes_for_them(tmp_path: Path, count: int) -> None:
    assert "staged.bytes.max" in refusal(tmp_path, f"staged.bytes.max = {count}\n")


@pytest.mark.parametrize("ms", [86_400_000, 3_650 * 86_400_000])
def test_how_long_transactional_ids_are_known(tmp_path: Path, ms: int) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(f"transactional.id.expiry.ms = {ms}\n")
    node = node_config(load_config(path), {"default": Address("h", 1)})
    assert node.transactional_id_expiry_ms == ms


@pytest.mark.parametrize("ms", [86_400_000 - 1, 3_650 * 86_400_000 + 1])
def test_they_are_known_too_short_or_too_long(tmp_path: Path, ms: int) -> None:
    assert "transactional.id.expiry.ms" in refusal(tmp_path, f"transactional.id.expiry.ms = {ms}\n")


@pytest.mark.parametrize("name", ["", "new", "new/data"])
def test_the_size_of_the_disk_is_measured_before_the_directory_is_made(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(f"data.dir = '{tmp_path / name}'\n")
    config = node_config(load_config(path), {"default": Address("h", 1)})
    assert config.disk_bytes == shutil.disk_usage(tmp_path).total > 0
