"""Headless Chromium, driven over a pipe by its own protocol: nothing but the browser is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60.0


class Browser:
    """One page in one browser. Commands go in on file descriptor 3, answers come out on 4."""

    def __init__(self, program, profile):
        to_read, self.commands = os.pipe()
        self.answers, to_write = os.pipe()
        # The child finds its ends under the numbers that it expects, whatever ours are.
        launcher = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self.process = subprocess.Popen(
            [
                "/bin/bash", "-c", launcher, "chromium", str(to_read), str(to_write),
                program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage",
                f"--user-data-dir={profile}", "--remote-debugging-pipe", "--window-size=1280,900",
                "about:blank",
            ],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session = b"", 0, None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        self.send("Page.enable")
        self.send("Network.enable")
        self.requests = []

    def send(self, method, **params):
        """Call a method of the protocol and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        return self._until(lambda answer: answer.get("id") == self.number)["result"]

    def _until(self, wanted):
        deadline = time.monotonic() + TIMEOUT
        while True:
            while b"\0" not in self.buffer:
                ready, _, _ = select.select([self.answers], [], [], deadline - time.monotonic())
                assert ready, "Chromium does not answer"
                read = os.read(self.answers, 1 << 20)
                assert read, "Chromium has ended"
                self.buffer += read
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            assert "error" not in answer, answer
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if wanted(answer):
                return answer

    def open(self, address):
        """Open ``address`` and return the seconds until it was loaded."""
        self.requests = []
        begin = time.monotonic()
        self.send("Page.navigate", url=address)
        self._until(lambda answer: answer.get("method") == "Page.loadEventFired")
        return time.monotonic() - begin

    def run(self, expression):
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, *keys):
        """Press keys by name (``"ArrowDown"``) or type single characters."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def media(self, **features):
        """Emulate media features, such as ``prefers_color_scheme="dark"``."""
        pairs = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.send("Emulation.setEmulatedMedia", features=pairs)

    def picture(self):
        """The page as PNG bytes."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def close(self):
        """End the browser."""
        with contextlib.suppress(AssertionError, OSError):
            self.session = None
            self.send("Browser.close")
        self.process.wait(TIMEOUT)
        os.close(self.commands)
        os.close(self.answers)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser for all tests of this folder; they are skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
