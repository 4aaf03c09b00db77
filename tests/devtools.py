"""A headless Chromium over its DevTools pipe, with the standard library alone."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile

PROGRAMS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
PATIENCE = 60


class Browser:
    """The process. A context: it is gone at the end."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise SystemExit(f"error: no browser: one of {', '.join(PROGRAMS)} is needed; tests/setup installs it")
        self.profile = tempfile.TemporaryDirectory(prefix="causeway-browser-", ignore_cleanup_errors=True)
        (theirs_in, self.write_end), (self.read_end, theirs_out) = self.pipe(), self.pipe()
        arguments = [
            program, "--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={self.profile.name}",
        ]
        if os.geteuid() == 0:
            # The sandbox refuses root, as which containers run. The pages are our own.
            arguments.append("--no-sandbox")
        silent = [(os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_RDWR, 0) for end in (0, 1, 2)]
        ends = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        self.process = os.posix_spawn(program, arguments, os.environ, file_actions=silent + ends)
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest, self.events = 0, b"", []

    @staticmethod
    def pipe():
        """Both ends of a pipe, away from 3 and 4, which the browser reads and writes."""
        ends = os.pipe()
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
        for end in ends:
            os.close(end)
        return moved

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Its own children may write to the profile for a moment longer.
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.write_end)
        os.close(self.read_end)
        self.profile.cleanup()

    def receive(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read_end], [], [], PATIENCE)
            piece = os.read(self.read_end, 1 << 20) if ready else b""
            if not piece:
                raise SystemExit("error: the browser " + ("ended" if ready else f"said nothing for {PATIENCE} s"))
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        """A command's result. What happens meanwhile is added to `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.receive()
            if reply.get("id") == self.number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self.events.append(reply)


class Page:
    """A page of a file, in a tab of its own."""

    def __init__(self, browser, path, width=1280, height=900, scheme="light", media="", script=True):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1 if width > 600 else 2, mobile=width <= 600)
        self.emulate(scheme, media)
        if not script:
            self.call("Emulation.setScriptExecutionDisabled", value=True)
        # Of earlier pages, and of the empty one.
        browser.events.clear()
        self.url = path.resolve().as_uri()
        self.call("Page.navigate", url=self.url)
        while not any(event.get("method") == "Page.loadEventFired" for event in browser.events):
            browser.events.append(browser.receive())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def emulate(self, scheme, media=""):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", expression))
        return result["result"].get("value")

    def press(self, key, code, text=""):
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      text=text if kind == "keyDown" else "")

    def complaints(self):
        """What the page wrote to the console, what went wrong in it, and what it asked the network for."""
        found = []
        for event in self.browser.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(f"{method}: {json.dumps(parameters)[:300]}")
            elif method == "Network.requestWillBeSent" and parameters["request"]["url"] != self.url:
                found.append(f"a request for {parameters['request']['url']}")
        return found

    def screenshot(self, path, whole=True):
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))
