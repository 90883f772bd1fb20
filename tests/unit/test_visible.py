"""Which texts show something, sign by sign."""

from __future__ import annotations

import time
from unicodedata import category

import pytest

from consumer.generation.visible import shows

BLANKS = {
    "zero width space": "\u200b",
    "byte order mark": "\ufeff",
    "NUL": "\0",
    "word and zero width joiners": "\u2060\u200d",
    "Hangul fillers": "\u3164\u115f\u1160\uffa0",
    "soft hyphen": "\u00ad",
    "braille blank": "\u2800",
    "undecodable": "\ufffd\ufffd",
    "variation selectors": "\ufe0f\U000e0100\u180b",
    "a grapheme joiner": "\u034f",
    "tags": "\U000e0001\U000e0041",
    "marks of direction": "\u202e\u2066\u061c",
    "separators": "\u2028\u2029\u00a0\u3000\u1680",
    "private use": "\ue000",
    "noncharacters": "\uffff\ufdd0\U0010fffe",
    "blanks of scripts": "\U00013441\U00016fe4\U0001d159\u17b4",
    "nothing": "",
    "all at once": " \n\u200b\t\ufeff\0\u3164\ufffd\u2800\x1b\x7f",
}
SEEN = {
    "a letter": "a",
    "a dot": ".",
    "an emoji": "\U0001f600",
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a flag": "\U0001f1e9\U0001f1ea",
    "a heart with its selector": "\u2764\ufe0f",
    "a mark on its base": "e\u0301",
    "Chinese": "\u4f60\u597d",
    "Hangul": "\ud55c",
    "conjoining Hangul": "\u1112\u1161\u11ab",
    "Devanagari": "\u0928\u093f",
    "Arabic": "\u0645",
    "braille": "\u2801",
    "a sign of later Unicode": "\U0001fabf",
    "a sign of no Unicode yet": "\u0378",
    "what stands behind blanks": "\u200b\ufeff \0x",
    "what stands before the undecodable": "x\ufffd",
}


@pytest.mark.parametrize("name", BLANKS)
def test_blanks_show_nothing(name):
    assert not shows(BLANKS[name])
    assert not shows(BLANKS[name] * 50 + "\n")


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen_shows(name):
    assert shows(SEEN[name])
    assert shows(f"\u200b\n{SEEN[name]}\ufeff")


def test_every_letter_digit_and_sign_but_the_few_blanks_shows():
    signs = [sign for sign in map(chr, range(0x110000)) if category(sign)[0] in "LNPS"]
    few = "\u115f\u1160\u2800\u3164\uffa0\ufffd\U00013441\U00013442\U0001d159"
    assert {sign for sign in signs if not shows(sign)} == set(few) & set(signs)


@pytest.mark.parametrize("text", ["word " * 400_000, "\u200b" * 2_000_000, "\n" * 2_000_000 + "x"])
def test_the_longest_answers_cost_little(text):
    began = time.thread_time()
    shows(text)
    assert time.thread_time() - began < 0.5
