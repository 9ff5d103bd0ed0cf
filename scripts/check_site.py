"""Check that the pages of a built site load nothing from another host.

python scripts/check_site.py FOLDER
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

# Attributes that make a browser fetch something when a page opens; links are followed by people.
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
_NOT_FETCHED = {"canonical", "next", "prev", "edit"}  # relations of <link>
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class _Fetches(HTMLParser):
    """Collects the addresses that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _FETCHED and not _NOT_FETCHED & set((values.get("rel") or "").split()):
            self.addresses.append(values.get(_FETCHED[tag]) or "")


def foreign_addresses(site: Path) -> Iterator[str]:
    """What pages and styles of a site fetch from another host, with the file that does."""
    for page in sorted(site.rglob("*.html")):
        fetches = _Fetches()
        fetches.feed(page.read_text())
        for address in fetches.addresses:
            if re.match(r"(?:https?:)?//", address):
                yield f"{page.relative_to(site)}: {address}"
    for style in sorted(site.rglob("*.css")):
        for address in _IN_STYLES.findall(style.read_text()):
            yield f"{style.relative_to(site)}: {address}"


def main(arguments: list[str]) -> int:
    """Print what is fetched from elsewhere; the exit status is 1 if there is anything."""
    site = Path(arguments[0])
    if not (site / "index.html").is_file():
        sys.stderr.write(f"{site} has no index.html: build the site first.\n")
        return 1
    foreign = list(foreign_addresses(site))
    sys.stderr.writelines(f"{line}\n" for line in foreign)
    return 1 if foreign else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
