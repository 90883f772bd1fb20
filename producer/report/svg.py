"""Matplotlib's SVG made fit to stand inside a page: its colours, its font, its names.

Colours are drawn as one of `COLOURS` and become variables of the page, so that one picture suits
light, dark and paper. Names get a prefix, since a page holds many pictures.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET  # reads nothing but what matplotlib has just written

INK, MUTED, LINE, BAR, ACCENT, PAPER = (
    "#010101",
    "#020202",
    "#030303",
    "#040404",
    "#050505",
    "#060606",
)
COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    BAR: "var(--bar)",
    ACCENT: "var(--accent)",
    PAPER: "var(--paper)",
}
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
# How matplotlib names a font: up to 3.10 in one property, later in one of its own.
_FONTS = (
    (re.compile(r"font: ((?:[\w.]+ )*?[\d.]+px)[^;]*"), r"font: \1 var(--font)"),
    (re.compile(r"font-family: [^;]*"), "font-family: var(--font)"),
)


def embed(svg: str, *, name: str, title: str, text: str, hints: dict[str, str]) -> str:
    """Return matplotlib's SVG as an element of a page.

    ``title`` and ``text`` are read out by screen readers; ``hints`` (by the name of a drawn
    thing) are shown where the pointer rests.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(svg)  # noqa: S314 - our own picture
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _rename(element, name, hints)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-text")
    for at, (tag, words) in enumerate((("title", title), ("desc", text))):
        label = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{'text' if at else 'title'}"})
        label.text = words
        root.insert(at, label)
    return ET.tostring(root, encoding="unicode")


def _rename(element: ET.Element, name: str, hints: dict[str, str]) -> None:
    style = element.get("style", "")
    if (fill := element.get("fill")) in COLOURS:  # variables count in a style only
        del element.attrib["fill"]
        style = f"fill: {fill}; {style}"
    if style:
        for pattern, word in _FONTS:
            style = pattern.sub(word, style)
        for colour, variable in COLOURS.items():
            style = style.replace(colour, variable)
        element.set("style", style)
    for attribute, value in list(element.attrib.items()):
        if attribute == f"{{{_XLINK}}}href":
            element.set(attribute, value.replace("#", f"#{name}-", 1))
        elif "url(#" in value:
            element.set(attribute, value.replace("url(#", f"url(#{name}-"))
    if own := element.get("id"):
        element.set("id", f"{name}-{own}")
        if own in hints:
            hint = ET.Element(f"{{{_SVG}}}title")
            hint.text = hints[own]
            element.insert(0, hint)
