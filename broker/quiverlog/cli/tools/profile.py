"""`quiverlog profile ...`: create, use, list and delete profiles."""

from __future__ import annotations

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import check_addresses, debug_option, format_option
from quiverlog.cli.console.output import print_json, print_table
from quiverlog.cli.console.profiles import Profile, Profiles, load, path_of_profiles, save

__all__ = ["profile"]

_NAME_CHARS_MAX = 100


@click.group()
def profile() -> None:
    """Names for brokers, so that --bootstrap-server need not be typed.

    They are kept in quiverlog/profiles.toml in the user's configuration folder ($XDG_CONFIG_HOME,
    or ~/.config). `quiverlog --profile NAME ...` takes one for one command. The brokers are those
    of the first that is given: --bootstrap-server, --profile, QUIVERLOG_BOOTSTRAP_SERVER,
    QUIVERLOG_PROFILE, the profile in use.
    """


def complete_profiles(_ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    try:
        return sorted(name for name in load().by_name if name.startswith(begun))
    except (CommandFailed, OSError):
        return []


def _known(profiles: Profiles, name: str) -> None:
    if name not in profiles.by_name:
        known = ", ".join(sorted(profiles.by_name)) or "none"
        raise CommandFailed(f"There is no profile {name!r}; there are: {known}.")


@profile.command()
@click.argument("name")
@click.option(
    "--bootstrap-server",
    "-b",
    "bootstrap",
    required=True,
    callback=check_addresses,
    metavar="HOST:PORT,...",
    help="The brokers of this profile.",
)
@click.option(
    "--security-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="How to reach them by TLS.",
)
@click.option("--use", is_flag=True, help="Use it from now on. The first profile always is.")
@click.option("--force", is_flag=True, help="Replace a profile of this name.")
@debug_option
def create(name: str, bootstrap: str, security_file: str | None, use: bool, force: bool) -> None:
    """Write a profile down."""
    if not (name.isprintable() and 0 < len(name) <= _NAME_CHARS_MAX):
        raise click.BadParameter(f"{name!r} is no name.", param_hint="NAME")
    profiles = load()
    if name in profiles.by_name and not force:
        raise CommandFailed(f"There is a profile {name!r} already: --force replaces it.")
    if use or not profiles.by_name:
        profiles.in_use = name
    profiles.by_name[name] = Profile(bootstrap, security_file or "")
    save(profiles)
    print(f"created {name}" + (", in use" if profiles.in_use == name else ""))


@profile.command(name="use")
@click.argument("name", shell_complete=complete_profiles)
@debug_option
def use_profile(name: str) -> None:
    """Use a profile from now on."""
    profiles = load()
    _known(profiles, name)
    profiles.in_use = name
    save(profiles)
    print(f"in use: {name}")


@profile.command(name="list")
@format_option()
@debug_option
def list_profiles(output_format: str) -> None:
    """List the profiles."""
    profiles = load()
    rows = [
        {
            "name": name,
            "bootstrap_server": one.bootstrap,
            "security_file": one.security_file,
            "in_use": name == profiles.in_use,
        }
        for name, one in sorted(profiles.by_name.items())
    ]
    if output_format == "json":
        print_json({"file": str(path_of_profiles()), "profiles": rows})
        return
    print_table(
        ["PROFILE", "BOOTSTRAP SERVER", "SECURITY FILE", "IN USE"],
        [
            (
                row["name"],
                row["bootstrap_server"],
                row["security_file"],
                "yes" if row["in_use"] else "",
            )
            for row in rows
        ],
    )


@profile.command()
@click.argument("name", shell_complete=complete_profiles)
@debug_option
def delete(name: str) -> None:
    """Delete a profile."""
    profiles = load()
    _known(profiles, name)
    del profiles.by_name[name]
    if profiles.in_use == name:
        profiles.in_use = None
    save(profiles)
    print(f"deleted {name}")
