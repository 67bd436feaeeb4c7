"""What the site does beyond its theme: pages from the root of the checkout, and links out of docs/.

The pages are written for a code host, where a link may point anywhere in the checkout. The site has
docs/ and two files of the root; a link to any other file becomes the file's name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# Files of the root that are pages of the site, and under which names.
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
# Code, in fences and in lines: what looks like a link there is none.
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`(?!\])", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root."""
    root = Path(config.docs_dir).parent
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Points links at pages of the site, where the site has what they point to."""
    names = {shown: name for name, shown in ROOT_PAGES.items()}
    # Where the page stands in the checkout, which its links are relative to.
    source = names.get(page.file.src_uri) or posixpath.join("docs", page.file.src_uri)

    def pointed(link: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
        shown = ROOT_PAGES.get(aim) or aim.removeprefix("docs/")
        if shown != aim and files.get_file_from_path(shown) is not None:
            start = posixpath.dirname(page.file.src_uri) or "."
            return f"[{link['text']}]({posixpath.relpath(shown, start)}{link['anchor'] or ''})"
        if aim.startswith("docs/"):
            return link[0]  # a page that is missing: mkdocs says so
        text = link["text"]
        return text if text.strip("`") == aim else f"{text} (`{aim}` in the checkout)"

    pieces, end = [], 0
    for code in _CODE.finditer(markdown):
        pieces += [_LINK.sub(pointed, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join(pieces) + _LINK.sub(pointed, markdown[end:])
