"""How text is cut before merging: the engine against another one, and known cuts."""

from __future__ import annotations

import pytest
import regex
from tokenizers import Regex, pre_tokenizers

from kt_core.models.pretokenizers import SPLITS

TEXTS = [
    "Hello world, it's 12345 o'clock!\n\n  Don't  panic\t;-) /path//to\r\n",
    "HTTPServer XMLHttp iPhone caf\u00e9 na\u00efve \u00c9COLE \u01c5 \ufb01n",
    "\u4e2d\u6587\u6d4b\u8bd5 mixed\u4e2d\u6587abc \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924",
    "x = [1, 22, 333, 4444]; # \u201cquoted\u201d \u2014 \u3002\uff01 \U0001d400\U0001d401 \U0001f600",
    "   ",
    " trailing ",
]


def cut(name, text):
    steps = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for pattern in SPLITS[name]
        if pattern is not None
    ]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


def cut_by_regex(name, text):
    pieces = [text]
    for pattern in SPLITS[name]:
        if pattern is None:
            continue
        compiled = regex.compile(pattern, regex.VERSION1)
        pieces = [part for piece in pieces for part in isolated(compiled, piece)]
    return pieces


def isolated(compiled, text):
    at = 0
    for found in compiled.finditer(text):
        if found.start() == found.end():
            continue
        if found.start() > at:
            yield text[at : found.start()]
        yield found.group()
        at = found.end()
    if at < len(text):
        yield text[at:]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", SPLITS)
def test_two_engines_cut_alike(name, text):
    pieces = cut(name, text)
    assert "".join(pieces) == text
    assert pieces == cut_by_regex(name, text)


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("qwen2", "a 12's", ["a", " ", "1", "2", "'s"]),
        ("llama-bpe", "a 1234's", ["a", " ", "123", "4", "'s"]),
        ("gpt-4o", "HelloWorld don't a/b", ["Hello", "World", " don't", " a", "/b"]),
        ("minimax-m2", "HelloWorld 1234", ["Hello", "World", " ", "123", "4"]),
        ("tekken", "don't 12", ["don", "'t", " ", "1", "2"]),
        (
            "kimi-k2",
            "abc\u4e2d\u6587def 1234/\n",
            ["abc", "\u4e2d\u6587", "def", " ", "123", "4", "/\n"],
        ),
        ("deepseek-llm", "Hi there 1234!\n", ["Hi", " there", " ", "1234", "!", "\n"]),
        ("deepseek-llm", "a\U0001d400b", ["a", "\U0001d400", "b"]),
        ("deepseek-coder", "f(x1)", ["f", "(", "x", "1", ")"]),
        ("deepseek-v3", "Hi 1234 x.py", ["Hi", " ", "123", "4", " x", ".py"]),
    ],
)
def test_known_cuts(name, text, pieces):
    assert cut(name, text) == pieces
