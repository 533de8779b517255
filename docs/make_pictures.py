"""Make the pictures of the documentation from real runs on the sandbox.

    python -m docs.make_pictures      write docs/pictures (in five minutes)

`make pictures` installs what it needs and runs it. The terminals are drawn as SVG by pyte, a
terminal emulator; the HTML report is photographed by Chromium. Needs Slurm, torch and DeepSpeed
(the sandbox) and chromium.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
# A text small enough to be learned by heart, so the evaluation loss parts from the training loss.
TRAINING = (
    *("zero2-4gpu", "--set", "batch.micro_batch_per_gpu=1", "--", "--data", str(ROOT / "LICENSE")),
    *("--lr", "6e-3", "--steps", "600", "--eval-every", "10"),
)
COLUMNS = 100
# Pixels of one character cell, and around the text.
WIDTH, HEIGHT, MARGIN, FONT = 8.4, 18, 16, 14
BACKGROUND = "#16161a"
COLOURS = {
    "default": "#d8d8d8",
    "faint": "#8b8b92",
    "black": "#5c5c66",
    "red": "#f07178",
    "green": "#8fc77a",
    "brown": "#e2b86b",
    "blue": "#7aa6e8",
    "magenta": "#c792ea",
    "cyan": "#4fc1c9",
    "white": "#d8d8d8",
}


class _Screen(pyte.Screen):
    """A terminal that also knows faint text, which pyte ignores."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        super().select_graphic_rendition(*attributes, **options)
        if attributes and attributes[-1] == 2:
            self.cursor.attrs = self.cursor.attrs._replace(fg="faint")
        elif attributes and attributes[-1] == 22:
            self.cursor.attrs = self.cursor.attrs._replace(fg="default")


def show_in_terminal(
    command: list[str], folder: Path, rows: int, seconds: float | None = None
) -> _Screen:
    """Run a command in a terminal; return the screen at its end, or after that many seconds.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    screen = _Screen(COLUMNS, rows)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[1m$ {' '.join(['hpcrun', *command])}\x1b[0m\r\n".encode())
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvp(sys.executable, [sys.executable, "-m", "hpcrun", *command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    deadline = time.monotonic() + (seconds or 120)
    ended = False
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # Linux's way to say that the other side has closed
                data = b""
            if not data:
                ended = True
                break
            stream.feed(data)
    if not ended:
        with contextlib.suppress(OSError):
            os.write(terminal, b"q")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    if ended and status:
        raise subprocess.CalledProcessError(status, command, "\n".join(screen.display))
    return screen


def draw_svg(screen: _Screen, title: str) -> str:
    """Draw the screen without the empty lines at its end."""
    rows = [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(screen.lines)]
    while rows and all(cell.data == " " for cell in rows[-1]):
        rows.pop()
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(rows) * HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f"<g font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" "
        f'font-size="{FONT}">',
    ]
    for y, row in enumerate(rows):
        x = 0
        for (colour, bold), run in groupby(row, key=lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in run)
            # Each word of a table has its own place, as SVG collapses several spaces into one.
            for word in re.finditer(r"\S+(?: \S+)*", text):
                column = x + word.start()
                fill = COLOURS.get(colour, f"#{colour}")
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{MARGIN + column * WIDTH:g}" y="{MARGIN + y * HEIGHT + FONT:g}" '
                    f'textLength="{len(word[0]) * WIDTH:g}" lengthAdjust="spacingAndGlyphs" '
                    f'fill="{fill}"{weight}>{html.escape(word[0])}</text>'
                )
            x += len(text)
    return "\n".join([*out, "</g>", "</svg>", ""])


def photograph(page: Path, picture: Path) -> None:
    """Let Chromium draw an HTML file as PNG."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options = ["--window-size=1200,860", "--virtual-time-budget=4000", f"--screenshot={picture}"]
    subprocess.run([*command, *options, page.as_uri()], check=True, capture_output=True)


def make_pictures(folder: Path) -> None:
    """Train, fail and wait in a sandbox below the folder, and picture what a user sees."""
    project = folder / "project"
    project.mkdir()
    os.environ |= {
        "HPCRUN_SANDBOX_DIR": str(folder / "sandbox"),
        "HPCRUN_CLUSTER": "sandbox",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "TERM": "xterm-256color",
    }

    def hpcrun(*arguments: str, may_fail: bool = False) -> str:
        command = [sys.executable, "-m", "hpcrun", *arguments]
        done = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, text=True)
        if not may_fail:
            done.check_returncode()
        return done.stdout

    def submit(job: str, *arguments: str) -> str:
        answer: dict[str, Any] = json.loads(hpcrun("submit", "--json", job, *arguments))
        return str(answer["job_id"])

    def picture(name: str, *command: str, rows: int, seconds: float | None = None) -> None:
        screen = show_in_terminal(list(command), project, rows, seconds)
        (PICTURES / f"{name}.svg").write_text(draw_svg(screen, f"hpcrun {' '.join(command)}"))

    hpcrun("sandbox", "up")
    try:
        failing = submit("zero3-4gpu", "--", "--fail-at", "8:2:exception")
        hpcrun("wait", failing, may_fail=True)
        training = submit(*TRAINING)
        submit("zero2-8gpu-2node")
        while (json.loads(hpcrun("status", training, "--json"))["runs"][0]["step"] or 0) < 100:
            time.sleep(1)
        picture("status", "status", rows=20)
        picture("top", "top", rows=10, seconds=10)
        hpcrun("wait", training)
        picture("parse", "parse", training, rows=36)
        hpcrun("parse", training, "--html", str(folder / "report.html"))
        photograph(folder / "report.html", PICTURES / "report.png")
    finally:
        hpcrun("sandbox", "down", "--yes")


def main() -> None:
    """Make all pictures in a temporary folder, which is removed."""
    if not shutil.which("chromium"):
        sys.exit("make_pictures: chromium is not installed")
    PICTURES.mkdir(exist_ok=True)
    # A short path: it is visible in the pictures.
    with tempfile.TemporaryDirectory(prefix="hpcrun-", dir="/tmp") as folder:
        make_pictures(Path(folder))


if __name__ == "__main__":
    main()
