"""Build the documentation site from the Markdown files of the repository.

    python -m docs.make_site           write build/docs/site
    python -m docs.make_site --pages   only write the pages, to build/docs/pages

`make site` installs what it needs (docs/site/requirements.txt) and runs it. Pages outside docs/,
such as the README, get a place in the site; links to other files lead to the repository. The build
fails on dead links, and on pages that the navigation does not list.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
BUILD = ROOT / "build" / "docs"
# Where the other files are, and where the site is; whoever publishes it sets the variables.
REPOSITORY = os.environ.get("DOCS_REPOSITORY", "https://example.org/hpcrun")
SITE = os.environ.get("DOCS_URL", REPOSITORY)
# Documents outside docs/ that are pages, and their names in the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
}
# The API reference, which the builder takes from the docstrings.
PYTHON = """\
# Python reference

The functions and classes of the package `hpcrun`. [The guide](api.md) shows how they are used.

::: hpcrun.api
"""
_LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def find_pages() -> dict[Path, str]:
    """Map each document of the repository to the name of its page."""
    pages = {ROOT / path: name for path, name in ELSEWHERE.items()}
    pages |= {path: path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    pages |= {
        path: f"examples/{path.parent.name}.md"
        for path in sorted((ROOT / "examples").glob("*/README.md"))
    }
    return pages


def convert_links(text: str, document: Path, pages: dict[Path, str]) -> str:
    """Point the links of a document at pages, copied files, or the repository.

    Raises:
        ValueError: A link leads to a file that does not exist.
    """
    here = Path(pages[document]).parent

    def convert(match: re.Match[str]) -> str:
        file, hash_mark, anchor = match[2].partition("#")
        if not file or re.match(r"[a-z]+:", file):
            return match[0]
        target = Path(os.path.normpath(document.parent / file))
        if not target.exists():
            raise ValueError(f"{document.relative_to(ROOT)}: {match[2]} does not exist")
        if target in pages:
            found = os.path.relpath(pages[target], here)
        elif target.is_relative_to(ROOT / "docs") and target.is_file():
            found = os.path.relpath(target.relative_to(ROOT / "docs"), here)
        else:
            found = f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/"
            found += str(target.relative_to(ROOT))
        return f"{match[1]}{found}{hash_mark}{anchor}{match[3]}"

    parts, end = [], 0
    for code in _CODE.finditer(text):  # links in code are text
        parts += [_LINK.sub(convert, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(convert, text[end:])])


def list_navigation(entries: Any) -> Iterator[str]:
    """Yield the pages that the navigation lists."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else list_navigation(value)


def build_catalog() -> dict[str, Any]:
    """Build a catalog of the schemas of job files and profiles, in the format of SchemaStore.

    A job file can have any name, so editors select its schema by the comment in its first line.
    """
    return {
        "$schema": "https://json.schemastore.org/schema-catalog.json",
        "version": 1.0,
        "schemas": [
            {
                "name": "hpcrun job",
                "description": "Training job for a Slurm cluster",
                "url": f"{SITE}/schema/job.schema.json",
            },
            {
                "name": "hpcrun cluster profile",
                "description": "Description of a Slurm cluster",
                "fileMatch": ["hpcrun.yaml"],
                "url": f"{SITE}/schema/cluster.schema.json",
            },
        ],
    }


def summarize(pages: dict[Path, str], nav: list[dict[str, Any]]) -> str:
    """List the pages with their first sentences, for language models (llms.txt)."""
    documents = {name: document for document, name in pages.items()}
    lines = ["# hpcrun", "", f"> {_first_sentence(documents['index.md'])}", ""]
    lines += ["Coding agents should read [hpcrun for coding agents](agents/) first.", ""]
    for section in nav:
        for title, entries in section.items():
            if isinstance(entries, str):
                continue
            lines += [f"## {title}", ""]
            for name in list_navigation(entries):
                if name in documents:
                    document = documents[name]
                    heading = re.search(r"^# (.*)", document.read_text(encoding="utf-8"), re.M)
                    label = heading[1] if heading else name
                    where = f"{name.removesuffix('.md').removesuffix('index')}/".replace("//", "/")
                    lines.append(f"- [{label}]({where}): {_first_sentence(document)}")
            lines.append("")
    return "\n".join(lines)


def _first_sentence(document: Path) -> str:
    """Return the first sentence of a document, without links and code marks."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    _, _, body = text.partition("# ")
    for paragraph in body.split("\n\n")[1:]:
        if re.match(r"\s*[\w`\[]", paragraph) and not paragraph.lstrip("\n").startswith("    "):
            line = " ".join(paragraph.split())
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("`", "")
            return re.split(r"(?<=[.!?]) (?=[A-Z])", plain)[0].rstrip(":")
    return ""


def write_pages(build: Path = BUILD) -> None:
    """Write the pages, the files that they show, and the configuration of the builder.

    Raises:
        ValueError: A link is dead, or the navigation does not list exactly the pages.
    """
    pages = find_pages()
    nav = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]
    listed = list(list_navigation(nav))
    if sorted(listed) != sorted([*pages.values(), "python.md"]):
        odd = sorted(set(listed) ^ {*pages.values(), "python.md"})
        raise ValueError(f"{CONFIG.relative_to(ROOT)}: nav does not list exactly the pages: {odd}")
    shutil.rmtree(build, ignore_errors=True)
    folder = build / "pages"
    for document, name in pages.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        text = document.read_text(encoding="utf-8")
        page.write_text(convert_links(text, document, pages), encoding="utf-8")
    shutil.copy(CONFIG, build)
    (folder / "python.md").write_text(PYTHON, encoding="utf-8")
    (folder / "llms.txt").write_text(summarize(pages, nav), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "json", folder / "json")
    shutil.copytree(ROOT / "docs" / "schema", folder / "schema")
    shutil.copy(ROOT / "jobs" / "job.schema.json", folder / "schema")
    catalog = json.dumps(build_catalog(), indent=2) + "\n"
    (folder / "schema" / "catalog.json").write_text(catalog, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pictures")


def main() -> int:
    """Write the pages and build the site; return 1 if the builder reports a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", action="store_true", help="only write the pages")
    given = parser.parse_args()
    write_pages()
    if given.pages:
        return 0
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(
        [*build, "--config-file", str(BUILD / CONFIG.name)], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
