"""Check every internal link of a built site: python -m tests.site_links docs/_build/html"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collect the anchors of an HTML page and the targets of its links and pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep `id`, `name` of an anchor, `href` and `src`."""
        for name, value in attrs:
            if value is not None and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)
            elif value is not None and name in ("href", "src"):
                self.targets.append(value)


def broken(site: Path) -> Iterator[str]:
    """Yield "PAGE: TARGET" for every internal link of `site` whose file or anchor does not exist."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in dict.fromkeys(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            has_anchor = not parts.fragment or file not in pages or unquote(parts.fragment) in pages[file].anchors
            if not file.is_file() or not has_anchor:
                yield f"{path.relative_to(site.resolve())}: {target}"


def main(site: str) -> int:
    found = list(broken(Path(site)))
    print("\n".join(found) if found else "every internal link leads to a file and an anchor")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
