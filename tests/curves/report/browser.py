"""A headless Chromium without network, controlled over DevTools' pipe, without port or driver.

https://chromedevtools.github.io/devtools-protocol/; on the pipe each message ends in a NUL byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require_command
from tests.waiting import PATIENCE

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    *("--no-default-browser-check", "--remote-debugging-pipe", "--proxy-server=127.0.0.1:9"),
)
_KEYS = {"+": 187, "-": 189, "0": 48, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, " ": 32}


class Browser:
    """A Chromium process; ``messages`` are all events that it sent, in order."""

    def __init__(self, to: int, answers: int) -> None:
        self._to = to
        self._answers = answers
        self._rest = b""
        self._number = 0
        self.messages: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of DevTools; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            assert ready, f"Chromium does not answer {method}"
            piece = os.read(self._answers, 1 << 20)
            assert piece, f"Chromium ended before it answered {method}"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.messages.append(message)
        return message


class Page:
    """A page in a separate window, with the light or dark theme."""

    def __init__(self, browser: Browser, file: Path | str, *, dark: bool) -> None:
        """Open a file without network, or an address of this machine."""
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._target, self._session = target, attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(1200, 900)
        if isinstance(file, Path):
            self.call(
                "Network.emulateNetworkConditions",
                offline=True,
                latency=0,
                downloadThroughput=0,
                uploadThroughput=0,
            )
        url = file.resolve().as_uri() if isinstance(file, Path) else file
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def events(self, method: str) -> list[dict[str, Any]]:
        """Return the events of a kind since the page was opened."""
        return [
            message["params"]
            for message in self._browser.messages
            if message["method"] == method and message.get("sessionId") == self._session
        ]

    def problems(self) -> list[str]:
        """Return uncaught errors, refused scripts and failed requests."""
        thrown = [str(each["exceptionDetails"]) for each in self.events("Runtime.exceptionThrown")]
        return thrown + [str(each["entry"]["text"]) for each in self.events("Log.entryAdded")]

    def requested(self) -> list[str]:
        """Return the addresses that the page requested, except for embedded data."""
        urls = [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, of a promise after it is resolved."""
        words = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in words, words["exceptionDetails"]
        return words["result"].get("value")

    def cpu_seconds(self) -> float:
        """Return the CPU time used by the page since the first call."""
        self.call("Performance.enable", timeDomain="threadTicks")
        measured = self.call("Performance.getMetrics")["metrics"]
        (seconds,) = (each["value"] for each in measured if each["name"] == "TaskDuration")
        return float(seconds)

    def wait_for(self, expression: str, patience: float = PATIENCE) -> Any:
        """Wait until an expression is true; return its value, or true for an element."""
        expression = f"(found => found instanceof Node || found)({expression})"
        deadline = time.monotonic() + patience
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)
        return found

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float, count: int = 1) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=count)

    def double_click(self, x: float, y: float, expression: str) -> None:
        """Double-click until an expression is true, because on a busy machine the page may receive
        the two clicks half a second apart, as two single ones."""
        for patience in (5, 10, 20, 60):
            self.click(x, y)
            self.click(x, y, count=2)
            with suppress(AssertionError):
                self.wait_for(expression, patience)
                return
        raise AssertionError(f"never true: {expression}")

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *begin)
        self.mouse("mousePressed", *begin, button="left", clickCount=1)
        for part in (0.3, 0.7, 1.0):
            between = (a + (b - a) * part for a, b in zip(begin, end, strict=True))
            self.mouse("mouseMoved", *between, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def press(self, key: str) -> None:
        code = _KEYS[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def chromium(profile: Path, command: str = "chromium") -> Iterator[Browser]:
    """Start Chromium with a temporary profile, and stop it."""
    ends = [*os.pipe(), *os.pipe()]
    # Above 4, so that descriptors 3 and 4, which the shell assigns, do not replace them.
    its_input, to, answers, its_output = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
    for end in ends:
        os.close(end)
    script = f'exec "$@" 3<&{its_input} 4>&{its_output}'
    argv = [command, *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *argv],
        pass_fds=(its_input, its_output),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Browser(to, answers)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        os.close(to)
        os.close(answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require_command("chromium")
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started
