"""What a profile said is remembered for its very text, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.controller import kept_profile
from hpcrun.controller.kept_profile import load_profile
from hpcrun.errors import SpecError
from hpcrun.spec.load import load_cluster
from tests.render.test_golden import GOLDEN

PROFILES = sorted(GOLDEN.glob("*/cluster.yaml"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def kept_files(environ: dict[str, str]) -> list[Path]:
    return sorted(Path(environ["XDG_CACHE_HOME"]).rglob("*.json"))


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each profile that is read as YAML."""
    noted: list[str] = []

    def load(text: str, *, source: str) -> object:
        noted.append(source)
        return load_cluster(text, source=source)

    monkeypatch.setattr("hpcrun.spec.load.load_cluster", load)
    return noted


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.parent.name)
def test_it_is_the_same_the_second_time(
    path: Path, environ: dict[str, str], read_anew: list[str]
) -> None:
    text = path.read_text()
    wanted = load_cluster(text, source="hpcrun.yaml")
    assert load_profile(text, "hpcrun.yaml", environ) == wanted
    assert load_profile(text, "hpcrun.yaml", environ) == wanted
    assert read_anew == ["hpcrun.yaml"]


def test_another_text_place_or_hpcrun_is_read(
    environ: dict[str, str], read_anew: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_profile("name: one", "a.yaml", environ).name == "one"
    assert load_profile("name: two", "a.yaml", environ).name == "two"
    assert load_profile("name: two", "b.yaml", environ).name == "two"
    monkeypatch.setattr(kept_profile, "__version__", "9.9")
    assert load_profile("name: two", "b.yaml", environ).name == "two"
    assert read_anew == ["a.yaml", "a.yaml", "b.yaml", "b.yaml"]


def test_a_profile_that_is_wrong_is_not_kept(environ: dict[str, str]) -> None:
    for _ in range(2):
        with pytest.raises(SpecError, match=r"a.yaml:1: nam: unknown key"):
            load_profile("nam: one", "a.yaml", environ)
    assert kept_files(environ) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"reader": 1}', b"[" * 5000])
def test_a_damaged_file_counts_for_nothing(environ: dict[str, str], damage: bytes) -> None:
    load_profile("name: one", "a.yaml", environ)
    (file,) = kept_files(environ)
    file.write_bytes(damage)
    assert load_profile("name: one", "a.yaml", environ).name == "one"
    assert file.read_bytes() != damage


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_could_have_written_counts_for_nothing(
    environ: dict[str, str], mode: int
) -> None:
    load_profile("name: one", "a.yaml", environ)
    (file,) = kept_files(environ)
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(file.read_bytes().replace(b'"name":"one"', b'"name":"two"'))
    assert load_profile("name: one", "a.yaml", environ).name == "two"  # it was one's own
    file.chmod(mode)
    assert load_profile("name: one", "a.yaml", environ).name == "one"


def test_a_link_is_not_followed(environ: dict[str, str], tmp_path: Path) -> None:
    load_profile("name: one", "a.yaml", environ)
    (file,) = kept_files(environ)
    moved = file.rename(tmp_path / "moved")
    moved.write_bytes(moved.read_bytes().replace(b'"name":"one"', b'"name":"two"'))
    file.symlink_to(moved)
    assert load_profile("name: one", "a.yaml", environ).name == "one"


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_without_a_cache_folder_all_works(home: str) -> None:
    assert load_profile("name: one", "a.yaml", {"HOME": home}).name == "one"
