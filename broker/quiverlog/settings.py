"""The one type for settings: of a broker, of a topic, of the Spark source and sink."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from quiverlog.addresses import parse_address

__all__ = [
    "INTEGER_MAX",
    "InvalidValue",
    "Kind",
    "Setting",
    "SettingsTable",
    "markdown_table",
    "text_of",
]

INTEGER_MAX: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"-?[0-9](?:_?[0-9]){0,18}")


class InvalidValue(ValueError):
    """A value that a setting refuses. The text begins with `is`: put the key in front."""


class Kind(enum.StrEnum):
    INTEGER = "integer"
    CHOICE = "choice"
    TEXT = "text"
    ADDRESS = "host:port"
    """`off` or empty: none. Port 0: any."""
    OTHER = "other"
    """Read by the setting's own `read`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. `minimum` and `maximum` are inclusive; `unlimited`: -1 is allowed, too.

    `default` is written as a person would write it; None: none, or it depends (see `default_doc`).
    """

    key: str
    kind: Kind
    default: str | int | None
    doc: str
    unit: str = ""
    minimum: int = 0
    maximum: int = INTEGER_MAX
    unlimited: bool = False
    choices: tuple[str, ...] = ()
    ignore_case: bool = False
    read: Callable[[str], Any] | None = None
    """For `Kind.OTHER`: the value of a text, or ValueError with what was expected."""
    label: str = ""
    """What the docs call the type, where that is not the kind."""
    default_doc: str = ""
    where: Any = None
    """A flag of the table's own: where the setting means something."""
    aliases: tuple[str, ...] = ()
    attribute: str = ""
    """Empty: the key, dots turned into underscores."""
    reloadable: bool = False
    """True where the value may change while the process runs."""
    because: str = ""
    """Where it may not: why, as the end of a sentence."""

    def __post_init__(self) -> None:
        assert self.doc.endswith("."), self.key
        assert (self.kind is Kind.CHOICE) == bool(self.choices), self.key
        assert (self.kind is Kind.OTHER) == (self.read is not None), self.key
        assert self.minimum <= self.maximum, self.key
        assert not (self.reloadable and self.because), self.key

    @property
    def field(self) -> str:
        return self.attribute or self.key.replace(".", "_")

    def parse(self, value: object) -> Any:
        """Return the typed value of a text, or of a TOML value.

        Raises:
            InvalidValue: with the value and what is allowed.
        """
        if self.kind is Kind.INTEGER:
            return self._parse_integer(value)
        # TOML may hold a choice as a boolean: `true` for "true".
        if self.kind is Kind.CHOICE and not isinstance(value, list | dict):
            value = text_of(value)
        if not isinstance(value, str):
            raise InvalidValue(f"is {value!r}, not {self.allowed or self.kind.value}.")
        if self.kind is Kind.CHOICE:
            text = value.strip().lower() if self.ignore_case else value
            if text not in self.choices:
                raise InvalidValue(f"is {value!r}, allowed are {self.allowed}.")
            return text
        if self.kind is Kind.ADDRESS:
            return _parse_listen_address(value)
        if self.read is None:
            return value
        try:
            return self.read(value)
        except ValueError as error:
            raise InvalidValue(f"is {value!r}, expected {error}.") from error

    def _parse_integer(self, value: object) -> int:
        number: object = value
        if isinstance(value, str):
            text = value.strip()
            # `int` alone would take blanks, `+` and any number of digits.
            number = int(text) if _INTEGER.fullmatch(text) and text.isascii() else None
        # TOML's true is an int in Python.
        if not isinstance(number, int) or isinstance(number, bool):
            raise InvalidValue(f"is {value!r}, not a whole number.")
        if not (self.minimum <= number <= self.maximum or (self.unlimited and number == -1)):
            raise InvalidValue(f"is {number}, allowed is {self.allowed}.")
        return number

    @property
    def allowed(self) -> str:
        """The allowed values, for messages and docs; empty where any text is."""
        if self.kind is Kind.CHOICE:
            return ", ".join(self.choices)
        if self.kind is not Kind.INTEGER:
            return ""
        top = self.maximum != INTEGER_MAX
        text = f"{self.minimum} to {self.maximum}" if top else f"{self.minimum} or more"
        return f"{text}, or -1 for no bound" if self.unlimited else text

    @property
    def type_label(self) -> str:
        return self.label or self.kind.value

    @property
    def default_label(self) -> str:
        if self.default_doc:
            return self.default_doc
        return "" if self.default in (None, "") else f"`{self.default}`"


def text_of(value: object) -> str:
    """Return a TOML value as a flag's text: booleans as true and false."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_listen_address(text: str) -> Any:
    if text in ("", "off"):
        return None
    try:
        return parse_address(text, port_min=0)
    except ValueError:
        raise InvalidValue(f"is {text!r}, not host:port (for example 127.0.0.1:9292).") from None


class SettingsTable(Mapping[str, Setting]):
    """Settings by key, in the order in which they are shown.

    Args:
        settings: all of them; keys and aliases must differ.
        absent: keys that people may expect here, and why they are not, as the end of a sentence.
        ignore_case: keys are matched without regard to case.
    """

    def __init__(
        self,
        settings: Iterable[Setting],
        *,
        absent: Mapping[str, str] | None = None,
        ignore_case: bool = False,
    ) -> None:
        listed = list(settings)
        self._settings = {setting.key: setting for setting in listed}
        self._ignore_case = ignore_case
        self._by_name: dict[str, Setting] = {}
        for setting in listed:
            for name in (setting.key, *setting.aliases):
                assert self._fold(name) not in self._by_name, f"{name} is there twice"
                self._by_name[self._fold(name)] = setting
            if setting.default is not None and not setting.default_doc:
                setting.parse(setting.default)  # A wrong default fails at import.
        self.absent: Final = {self._fold(key): why for key, why in (absent or {}).items()}
        assert not self.absent.keys() & self._by_name.keys()

    def __getitem__(self, key: str) -> Setting:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def find(self, name: str) -> Setting | None:
        return self._by_name.get(self._fold(name))

    def suggest(self, name: str) -> str | None:
        close = difflib.get_close_matches(self._fold(name), list(self._by_name), n=1)
        return self._by_name[close[0]].key if close else None

    def why_unknown(self, name: str) -> str:
        """Return why there is no such setting, or what may have been meant."""
        assert self.find(name) is None, name
        why = self.absent.get(self._fold(name))
        if why is not None:
            return why
        close = self.suggest(name)
        return f"there is no such key (is it `{close}`?)" if close else "there is no such key"

    def _fold(self, name: str) -> str:
        return name.lower() if self._ignore_case else name


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        assert len(cells) == len(head), cells
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, rows))
