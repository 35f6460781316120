"""A headless Chromium, driven by the DevTools protocol.

Only what the console's tests need: pages, what they hold, what they log, real keys and clicks. Each
browser has a profile of its own in the directory it is given.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

TIMEOUT_S = 120
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_LOOK_MS = 25


def chromium() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Failed(AssertionError):
    """A script failed, or what was waited for did not come."""


class Browser:
    """One process. Ended by its own id."""

    def __init__(self, profile: Path) -> None:
        path = chromium()
        assert path is not None
        self._process = subprocess.Popen(
            [
                *(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"),
                *("--disable-extensions", "--disable-component-update", "--mute-audio"),
                *("--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={profile}"),
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self._log: list[str] = []
        for line in self._process.stderr:
            self._log.append(line)
            if line.startswith("DevTools listening on "):
                self._port = int(line.split("ws://", 1)[1].split("/", 1)[0].rpartition(":")[2])
                break
        else:
            raise Failed("chromium did not start:\n" + "".join(self._log))
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def page(self) -> Page:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)


class Page:
    """A tab. `problems` has what it logged as an error, exceptions and blocked loads included."""

    def __init__(self, address: str) -> None:
        self._opened = ExitStack()
        self._socket: ClientConnection = self._opened.enter_context(
            connect(address, max_size=None, proxy=None, open_timeout=TIMEOUT_S)
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.received_bytes = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(1280, 900)

    def close(self) -> None:
        self.call("Page.close")
        self._opened.close()
        self._reader.join(TIMEOUT_S)

    # What a user does ---------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Loads a view, and waits until it is shown."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && !!document.querySelector('#main h1')")

    def click(self, selector: str, text: str | None = None) -> None:
        """A real click in the middle of the first element that fits and has the text."""
        wanted = json.dumps([selector, text])
        self.wait_for(f"!!({_FIND})(...{wanted})")
        box = self.run(f"""(() => {{
            const found = ({_FIND})(...{wanted});
            found.scrollIntoView({{block: 'center', inline: 'nearest'}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def fill(self, selector: str, text: str) -> None:
        """Types a text into a field in place of what is there."""
        self.wait_for(f"!!document.querySelector({json.dumps(selector)})")
        self.run(f"""(() => {{
            const field = document.querySelector({json.dumps(selector)});
            field.focus();
            field.select();
        }})()""")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.key("Delete")

    def choose(self, selector: str, value: str) -> None:
        self.run(f"""(() => {{
            const box = document.querySelector({json.dumps(selector)});
            box.value = {json.dumps(value)};
            box.dispatchEvent(new Event('change', {{bubbles: true}}));
        }})()""")

    def key(self, key: str) -> None:
        """One key: a character, or a name such as Tab or Escape."""
        if len(key) == 1:
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        else:
            codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Delete": 46}
            code = {"windowsVirtualKeyCode": codes[key], "code": key}
            text = {"text": "\r"} if key == "Enter" else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    # What a test asks ---------------------------------------------------------------------------

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise Failed(f"{script}\n{json.dumps(found['exceptionDetails'], indent=1)}")
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression is true."""
        script = f"""new Promise((done) => {{
            const end = Date.now() + {TIMEOUT_S * 1000};
            const look = () => {{
                let found = false;
                try {{ found = !!({condition}); }} catch {{ found = false; }}
                if (found || Date.now() > end) done(found);
                else setTimeout(look, {_LOOK_MS});
            }};
            look();
        }})"""
        try:
            if self.run(script):
                return
        except Failed:
            # The page was left in the meantime, and its scripts with it.
            if self.run(script):
                return
        raise Failed(f"not so within {TIMEOUT_S} s: {condition}\n{self.text()}\n{self.problems}")

    def wait_for_text(self, text: str) -> None:
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def text(self, selector: str = "body") -> str:
        found = self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        assert isinstance(found, str)
        return found

    def texts(self, selector: str) -> list[str]:
        found = self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)"
        )
        assert isinstance(found, list)
        return found

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`, as the system would say."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    # ----------------------------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers[number] = answer
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        found = answer.get(timeout=2 * TIMEOUT_S)
        del self._answers[number]
        if "error" in found:
            raise Failed(f"{method}: {found['error']}")
        result: dict[str, Any] = found.get("result", {})
        return result

    def _read(self) -> None:
        try:
            for message in self._socket:
                document = json.loads(message)
                if "id" in document:
                    self._answers[document["id"]].put(document)
                else:
                    self._note(document["method"], document["params"])
        except ConnectionClosed:
            pass
        for waiting in list(self._answers.values()):
            waiting.put({"result": {}})  # The page has closed.

    def _note(self, method: str, event: dict[str, Any]) -> None:
        notes: dict[str, Callable[[], None]] = {
            "Runtime.exceptionThrown": lambda: self.problems.append(
                json.dumps(event["exceptionDetails"])
            ),
            "Log.entryAdded": lambda: self._note_entry(event["entry"]),
            "Network.requestWillBeSent": lambda: self.requests.append(event["request"]["url"]),
            "Network.loadingFinished": lambda: self._count(event["encodedDataLength"]),
        }
        notes.get(method, lambda: None)()

    def _note_entry(self, entry: dict[str, Any]) -> None:
        if entry["level"] == "error":
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    def _count(self, size: float) -> None:
        self.received_bytes += int(size)


_FIND = """(selector, text) => [...document.querySelectorAll(selector)].find(
    (each) => text === null || each.innerText.trim() === text)"""
