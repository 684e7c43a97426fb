"""Drive a headless Chromium over its DevTools pipe, without a driver or a port, and read charts that it has drawn."""

import json
import os
import re
import select
import shutil
import subprocess
import time
import zlib
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unicodedata import normalize

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_SECONDS = 120.0
"""Seconds to wait for one answer; a busy machine starts a browser slowly."""
ACCURACY = 'figure[data-chart="accuracy"]'
VALIDATION = 'figure[data-chart="validation"]'


def find_chromium() -> str | None:
    """Return the path of Chromium; the variable CHROMIUM may name it."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """A browser with one tab; it is closed at the end of its with block."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def set_up_pipes() -> None:
            # DevTools reads from file descriptor 3 and writes to 4; a pipe may already have one of these numbers
            commands_copy, answers_copy = os.dup(commands), os.dup(answers)
            os.dup2(commands_copy, 3)
            os.dup2(answers_copy, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=set_up_pipes,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._buffer, self._session = 0, b"", None
        self.requests: list[str] = []
        """URLs that the page requested."""
        self.errors: list[str] = []
        """Errors and warnings in the console, and exceptions."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self._target = page

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command and return its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = self._wait(lambda found: found.get("id") == self._number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            if b"\0" not in self._buffer:
                ready, _, _ = select.select([self._from], [], [], 1.0)
                if ready:
                    chunk = os.read(self._from, 1 << 20)
                    if not chunk:
                        raise AssertionError("Chromium exited")
                    self._buffer += chunk
                continue
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            self._note(message)
            if wanted(message):
                return dict(message)
        raise AssertionError("Chromium did not answer in time")

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["entry"]))

    def open(self, page: Path | str, *, width: int = 1100, height: int = 900, theme: str = "light") -> None:
        """Load a page from disk or a URL in a window of this size."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        # leave the last page first, because it may send requests to a server that is closed by now
        self.call("Page.navigate", url="about:blank")
        self._wait(lambda found: found.get("method") == "Page.loadEventFired")
        self.requests.clear()
        self.errors.clear()
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=address)
        self._wait(lambda found: found.get("method") == "Page.loadEventFired")
        until = time.monotonic() + TIMEOUT_SECONDS
        wanted = f"complete,{address.partition(':')[0]}:"
        while self.evaluate("[document.readyState, location.protocol].join()") != wanted:
            assert time.monotonic() < until, f"{page} does not load"
            time.sleep(0.02)
        self.settle()

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def settle(self) -> None:
        """Wait until changes are drawn."""
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def evaluate(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and return its middle."""
        found = self.evaluate(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            " it.scrollIntoView({block: 'center'}); const box = it.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return float(found[0]), float(found[1])

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowRight": 39,
        }
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip
        self.settle()

    def print(self, width: float = 8.5, height: float = 11.0) -> bytes:
        """Print the page to PDF on paper of this size in inches; without a size, on Letter."""
        printed = self.call("Page.printToPDF", printBackground=True, paperWidth=width, paperHeight=height)
        return b64decode(printed["data"])


def read_pages(pdf: bytes) -> list[str]:
    """Return the text on each page of a PDF that Chromium has printed, without spaces and line breaks."""
    objects = {int(number): body for number, body in re.findall(rb"(?s)\n(\d+) 0 obj\s(.*?)\nendobj", pdf)}

    def read_stream(number: str | bytes) -> str:
        head, _, rest = objects[int(number)].partition(b"stream\n")
        data = rest.rpartition(b"\nendstream")[0]
        return (zlib.decompress(data) if b"/FlateDecode" in head else data).decode("latin-1")

    def read_font(number: bytes) -> dict[str, str]:
        """Return the letters of a font by their codes, which have two or four digits."""
        found = re.search(rb"/ToUnicode (\d+)", objects[int(number)])
        letters = {}
        table = read_stream(found[1]).partition("endcodespacerange")[2] if found else ""
        for line in table.splitlines():
            codes = re.findall(r"<([0-9A-F]+)>", line)
            if len(codes) == 2:
                letters[codes[0]] = bytes.fromhex(codes[1]).decode("utf-16-be")
            elif len(codes) == 3:
                first, last, letter = (int(code, 16) for code in codes)
                digits = len(codes[0])
                letters |= {f"{c:0{digits}X}": chr(letter + c - first) for c in range(first, last + 1)}
        return letters

    pages = []
    for page in (body for body in objects.values() if re.search(rb"/Type\s*/Page\b", body)):
        fonts = {name.decode(): read_font(number) for name, number in re.findall(rb"/(F\d+) (\d+) 0 R", page)}
        contents, text = re.search(rb"/Contents (\d+)", page), ""
        letters: dict[str, str] = {}
        assert contents is not None
        for font, codes in re.findall(r"/(F\d+) [\d.]+ Tf|<([0-9A-F]+)> Tj", read_stream(contents[1])):
            letters = fonts[font] if font else letters
            digits = len(next(iter(letters), "0000"))
            found = (codes[place : place + digits] for place in range(0, len(codes), digits))
            text += "".join(letters.get(code, "") for code in found)
        # a ligature is written as its letters
        pages.append("".join(normalize("NFKC", text).split()))
    return pages


def read_curves(browser: Browser, figure: str) -> dict[str, list[tuple[int, float]]]:
    """Return the points of the drawn curves, converted by the scale that the drawing stores."""
    found: list[dict[str, Any]] = browser.evaluate(
        f"""[...document.querySelectorAll('{figure} svg path.curve')].map((path) => ({{
            name: path.dataset.curve ?? path.dataset.silo, d: path.getAttribute("d"),
            scale: {{...path.ownerSVGElement.dataset}}
        }}))"""
    )
    curves = {}
    for each in found:
        scale = {name: float(value) for name, value in each["scale"].items()}
        points = [
            tuple(map(float, point.split("h")[0].split()))
            for point in each["d"].replace("L", "M").split("M")[1:]
        ]
        rounds = int(scale["rounds"])
        curves[each["name"]] = [
            (
                round((x - scale.get("left", 0)) / scale["width"] * max(rounds - 1, 1)),
                scale["high"] - (y - scale.get("top", 0)) / scale["height"] * (scale["high"] - scale["low"]),
            )
            for x, y in points
        ]
    return curves
