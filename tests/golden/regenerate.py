"""Writes golden files: `python -m tests.golden.regenerate [--change NAME]...`.

New entries are added. An entry whose bytes changed is refused unless it is named with `--change`:
golden bytes are what running brokers and clients in other languages rely on, so the author of a
change names each of them and explains it in the commit.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from tests.golden.samples import batch_samples, frame_samples

HERE = Path(__file__).parent
FILES: dict[str, Callable[[], dict[str, bytes]]] = {
    "frames.txt": frame_samples,
    "batches.txt": batch_samples,
}
BYTES_PER_LINE = 16


def render(entries: dict[str, bytes]) -> str:
    """Entries as hex text, with what can be read of it as characters."""
    lines = ["# Golden bytes; see regenerate.py. Changing an entry changes the format.", ""]
    for name, data in entries.items():
        lines.append(f"[{name}] {len(data)} bytes")
        for at in range(0, len(data), BYTES_PER_LINE):
            part = data[at : at + BYTES_PER_LINE]
            text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
            lines.append(f"{at:06x}  {part.hex(' ', 4):<36}|{text}")
        lines.append("")
    return "\n".join(lines)


def load(file: str) -> dict[str, bytes]:
    """Read a golden file back."""
    entries: dict[str, bytes] = {}
    name = ""
    for line in (HERE / file).read_text().splitlines():
        if line.startswith("["):
            name = line[1 : line.index("]")]
            entries[name] = b""
        elif line and not line.startswith("#"):
            entries[name] += bytes.fromhex(line[8:].split("|")[0])
    return entries


def main(arguments: list[str]) -> int:
    allowed = {name for flag, name in itertools.pairwise(arguments) if flag == "--change"}
    for file, make in FILES.items():
        old = load(file) if (HERE / file).exists() else {}
        new = make()
        changed = sorted(name for name in old if old[name] != new.get(name))
        refused = [name for name in changed if name not in allowed]
        if refused:
            print(
                f"{file}: refusing to change {', '.join(refused)}; see --change in the docstring."
            )
            return 1
        (HERE / file).write_text(render(new))
        print(f"{file}: {len(new)} entries, changed: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
