"""Write tables and lists as one self-contained HTML page in the style of the reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcrun.curves.report.html import PageSection, page_part, render_page
from hpcrun.files import write_atomically

# The page has no script, and requests nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_table_page(
    path: Path, title: str, tiles: Sequence[tuple[str, str, str]], sections: Sequence[PageSection]
) -> None:
    """Write the page.

    Args:
        tiles: Name, value and details of the facts at the top.

    Raises:
        InputError: The file cannot be written.
    """
    text = render_page(
        "tables.html.j2",
        title=title,
        policy=_POLICY,
        style=page_part("page.css"),
        tiles=tiles,
        sections=[section for section in sections if section.rows],
    )
    with write_atomically(path) as file:
        file.write(text.encode("utf-8"))
