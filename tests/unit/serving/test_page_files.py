"""The page's files as they are served: a strict policy, nothing inline, nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from serving.page_routes import CONTENT_SECURITY_POLICY

NAMES = sorted(file.name for file in (files("serving") / "page").iterdir() if file.is_file())


def text(name: str) -> str:
    return (files("serving") / "page" / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["", *(f"page/{name}" for name in NAMES)])
async def test_each_file_is_served_under_the_policy_without_a_key(shop, name):
    response = await shop.client.get(f"/{name}", headers={"Authorization": ""})
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    suffix = name.rpartition(".")[2] or "html"
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert response.headers["content-type"].startswith(kinds[suffix])


def test_the_policy_forbids_whatever_it_does_not_name():
    policy = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize(
    "path", ["/page/", "/page/absent.js", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/__init__.py"]
)
async def test_nothing_else_is_served(shop, path):
    assert (await shop.client.get(path)).status_code == 404


async def test_the_page_is_no_part_of_the_api_document(shop):
    paths = (await shop.client.get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/page")]
    assert "/v1/scenarios/{name}/draw" in paths


@pytest.mark.parametrize("name", NAMES)
def test_no_file_reaches_outside_or_reads_text_as_markup(name):
    found = text(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.", found), "another host"
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in found
    if name.endswith((".html", ".svg")):
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|<style", found), "inline code or style"


def test_each_import_and_reference_is_a_file_of_the_page():
    index = text("index.html")
    wanted = set(re.findall(r'"/page/([^"]+)"', index))
    for name in NAMES:
        if name.endswith(".js"):
            wanted |= set(re.findall(r'from "\./([^"]+)"', text(name)))
    assert wanted
    assert wanted <= set(NAMES)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back", "least"),
    [
        ("ink", "paper", 7),
        ("ink", "surface", 7),
        ("ink", "tint", 7),
        ("soft", "paper", 4.5),
        ("soft", "surface", 4.5),
        ("accent", "paper", 4.5),
        ("accent", "tint", 4.5),
        ("on-accent", "accent", 4.5),
        ("on-accent", "accent-strong", 4.5),
        ("alarm", "surface", 4.5),
        ("alarm", "paper", 4.5),
        ("edge", "paper", 3),
        ("edge", "surface", 3),
    ],
)
def test_colours_are_told_apart_in_both_schemes(scheme, front, back, least):
    blocks = re.findall(r":root \{(.*?)\}", text("page.css"), flags=re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[scheme]))
    light, dark = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= least
