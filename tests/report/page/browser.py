"""A headless Chromium: what a reader does with a page, and what the reader sees then."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage"),
)
ENTER, ESCAPE, RIGHT, DOWN = "\ue007", "\ue00c", "\ue014", "\ue015"


class Browser:
    """What tests ask of a browser, in a few words."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    @classmethod
    def start(cls, binary: str, driver: str, profile: Path) -> Browser:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = binary
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        return cls(webdriver.Chrome(options=options, service=Service(driver)))

    def quit(self) -> None:
        self.driver.quit()

    def tell(self, command: str, **settings: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, settings)

    def reset(self) -> None:
        self.driver.get("about:blank")
        self.tell("Emulation.setScriptExecutionDisabled", value=False)
        self.size(1320, 900)
        self.theme("light")

    def size(self, width: int, height: int) -> None:
        measures = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **measures)

    def theme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.tell("Emulation.setEmulatedMedia", features=[feature])

    def open(self, page: Path, *, script: bool = True) -> Browser:
        self.tell("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get_log("browser")
        self.driver.get(page.resolve().as_uri())
        return self

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def write(self, selector: str, keys: str) -> None:
        self.one(selector).send_keys(keys)

    def rows(self, selector: str) -> list[list[str]]:
        """The cells of a table's body."""
        script = (
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"
            ".map(r => [...r.children].map(c => c.textContent.trim()))"
        )
        return self.run(script, selector)

    def pixels(self, canvas: str) -> str:
        """What a canvas shows, as text to compare."""
        return self.run(f"return document.querySelector('{canvas}').toDataURL()")

    def problems(self) -> list[str]:
        """Errors of scripts and refusals of the page's policy."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def click_at(self, selector: str, x: float, y: float) -> None:
        """Click inside a picture, at a place of its own coordinates."""
        self.hover_at(selector, x, y)
        self.run(_AT + "canvas.dispatchEvent(new MouseEvent('click', at));", selector, x, y)

    def hover_at(self, selector: str, x: float, y: float) -> None:
        script = _AT + "canvas.dispatchEvent(new PointerEvent('pointermove', at));"
        self.run(script, selector, x, y)


_AT = """
const [what, x, y] = arguments, canvas = document.querySelector(what);
const box = canvas.getBoundingClientRect(), scale = box.width / 400;
const at = {clientX: box.left + x * scale, clientY: box.top + y * scale, bubbles: true};
"""


def facts_of(page: Path | bytes) -> dict[str, Any]:
    """The facts that a page holds for its script."""
    content = page if isinstance(page, bytes) else page.read_bytes()
    start = content.index(b'id="facts">') + len(b'id="facts">')
    return json.loads(content[start : content.index(b"</script>", start)])


def unpacked(text: str, dtype: str = "<f4") -> Any:
    import numpy as np

    return np.frombuffer(base64.b64decode(text), dtype=dtype)


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace(",", "").replace(" %", "").split(" ±")[0])
