"""Whether a text shows anything: an answer of blanks alone is none, whichever blanks they are."""

from __future__ import annotations

from unicodedata import category

# Signs that Unicode has among letters, marks and symbols, and that show nothing: default-ignorable
# ones, fillers and blanks. U+FFFD stands for what could not be decoded.
_BLANK = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
            *(0x17B4, 0x17B5),  # inherent vowels of Khmer
            *range(0x180B, 0x1810),  # variation selectors of Mongolian
            *range(0xFE00, 0xFE10),  # variation selectors
            *range(0xE0000, 0xE1000),  # tags, variation selectors, and what is kept for more
            0x2065,
            *range(0xFFF0, 0xFFF9),  # kept for more signs that show nothing
            0x2800,  # braille pattern blank
            *(0x13441, 0x13442),  # blanks of hieroglyphs
            0x16FE4,  # filler of Khitan
            0x1D159,  # null notehead
            0xFFFD,
        ),
    )
)


def shows(text: str) -> bool:
    """Return whether a text has a visible sign: one that is no blank, control or format sign.

    Signs that this Python's Unicode does not know are visible: they may be newer letters or emoji.
    """
    # The first sign nearly always tells; else each is looked at once, however long the text is.
    return any(map(_is_visible, text.lstrip()[:1])) or any(map(_is_visible, set(text)))


def _is_visible(sign: str) -> bool:
    if sign in _BLANK:
        return False
    kind = category(sign)
    return kind[0] not in "CZ" or (kind == "Cn" and not _is_noncharacter(sign))


def _is_noncharacter(sign: str) -> bool:
    return ord(sign) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(sign) <= 0xFDEF
