"""A headless Chromium driven over a pipe by the DevTools protocol: a page is opened, asked, moved and photographed.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
         "--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1280,900")
SECONDS = 60.0


def found() -> str:
    """The path of a Chromium; "" where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class Browser:
    """One process and one page; `events` is everything that the page reported, in order."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._out = os.pipe()
        self._in, write = os.pipe()

        def connect() -> None:
            """The browser reads at descriptor 3 and writes at descriptor 4, whichever numbers the pipes have here."""
            there, back = os.dup(read), os.dup(write)
            os.dup2(there, 3)
            os.dup2(back, 4)

        self._process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"], preexec_fn=connect,
            pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(read)
        os.close(write)
        self._rest, self._last, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = next(t["targetId"] for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._last:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']['message']}")
                return dict(got["result"])

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError(f"the browser says nothing for {SECONDS:g} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        if message.get("method") == "Target.attachedToTarget":  # a worker: what it asks for is heard, too
            enable = {"id": 0, "method": "Network.enable", "sessionId": message["params"]["sessionId"]}
            os.write(self._out, json.dumps(enable).encode() + b"\0")
        return message

    def open(self, page: Path | str, fragment: str = "") -> None:
        """Load a file or an address, at a place of it that begins with #, and wait until it is there."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        for url in ("about:blank", address + fragment):
            self.events.clear()
            self.ask("Page.navigate", url=url)
            while not any(e["method"] == "Page.loadEventFired" for e in self.events):
                self._receive()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        got = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(str(got["exceptionDetails"]))
        return got["result"].get("value")

    def wait(self, script: str, seconds: float = SECONDS) -> Any:
        """The value of an expression as soon as it is true; raises TimeoutError where it does not become so."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"for {seconds:g} s not true: {script}")
            time.sleep(0.2)
        return value

    def requests(self) -> list[str]:
        """The addresses that the page and its workers asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[Any]:
        """What went to the console: errors, warnings, exceptions, refusals by the page's policy."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [e["params"] for e in self.events if e["method"] in kinds]

    def photograph(self, path: Path, whole: bool = True) -> None:
        """The page as a PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                        **({"clip": {**self.run("({x: 0, y: 0, width: document.documentElement.scrollWidth, "
                                                "height: document.documentElement.scrollHeight, scale: 1})")}}
                           if whole else {}))
        path.write_bytes(b64decode(shot["data"]))

    def close(self) -> None:
        """End the process, and remove what it wrote."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()
