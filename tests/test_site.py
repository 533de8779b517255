"""The documentation site has every page, and its links lead to pages, files or the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make_site import REPOSITORY, ROOT, convert_links, find_pages, write_pages


def test_pages_of_the_site_are_those_that_the_navigation_lists(tmp_path: Path) -> None:
    write_pages(tmp_path / "docs")
    assert (tmp_path / "docs" / "pages" / "index.md").is_file()
    assert (tmp_path / "docs" / "mkdocs.yml").is_file()
    summary = (tmp_path / "docs" / "pages" / "llms.txt").read_text()
    assert summary.startswith("# hpcrun\n\n> From a short YAML file to a loss curve")
    line = next(line for line in summary.splitlines() if "](jobs/)" in line)
    assert line.startswith("- [Job files and cluster profiles by topic](jobs/): ")


@pytest.mark.parametrize(
    ("document", "link", "page_link"),
    [
        ("README.md", "docs/jobs.md#sweeps", "jobs.md#sweeps"),
        ("docs/jobs.md", "../README.md#your-cluster", "index.md#your-cluster"),
        ("examples/README.md", "video-lora/README.md", "video-lora.md"),
        ("docs/jobs.md", "../examples/video-lora/train.py", None),
        ("docs/jobs.md", "https://slurm.schedmd.com", "https://slurm.schedmd.com"),
    ],
)
def test_links_are_converted_to_the_site(document: str, link: str, page_link: str | None) -> None:
    text = convert_links(f"`[code]({link})` [text]({link})", ROOT / document, find_pages())
    wanted = page_link or f"{REPOSITORY}/blob/main/examples/video-lora/train.py"
    assert text == f"`[code]({link})` [text]({wanted})"


def test_dead_link_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"README\.md: docs/nothing\.md does not exist"):
        convert_links("[x](docs/nothing.md)", ROOT / "README.md", find_pages())
