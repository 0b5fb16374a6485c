"""Which devices a job may have, as an expression such as ``room in (3, 4) and memory_mb > 900``. Pure.

    any:         any "or" any, any "and" any, "not" any, "(" any ")"
    comparison:  NAME = VALUE, NAME != VALUE, < <= > >=, NAME in (VALUE, ...), NAME not in (VALUE, ...), NAME

A name is a label or a fact of a device. Two numbers are compared as numbers, all else as text. A device without a label
does not have its values: ``room = 3`` is false for it, ``room != 3`` is true, and so is ``not room``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping

from shoal.errors import Misuse

Test = Callable[[Mapping[str, str]], bool]

EXPRESSION_MAX_CHARS = 1000
_DEPTH_MAX = 30

#: A label is part of expressions, terminals and metrics: its name and its value are kept plain.
LABELS_MAX = 32
_LABEL_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9._/-]{1,60}")

_WORDS = ("and", "or", "not", "in")
#: Facts that every device reports: its name, its machine, and the versions of packages, empty if not installed.
FACTS = ("node", "host", "arch", "cpus", "memory_mb", "python", "torch", "onnx", "shoal", "browser")
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'[^']*'|\"[^\"]*\")|(?P<mark><=|>=|!=|==|[=<>(),])|(?P<word>[A-Za-z0-9._/+-]+))",
)
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def parse_labels(pairs: Iterable[str]) -> dict[str, str]:
    """Read labels as they are typed, ``NAME=VALUE`` each. An empty value is kept: it takes a label away.

    Raises Misuse for what is not a label, and for the names of facts.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _LABEL_NAME.fullmatch(name) or (value and not _LABEL_VALUE.fullmatch(value)):
            raise Misuse(
                f"{pair[:80]!r} is not a label: write NAME=VALUE, such as room=3. A name has small letters, digits"
                " and _, a value letters, digits and . _ - /"
            )
        if name in _WORDS or name in FACTS:
            raise Misuse(f"a label cannot be called {name}: every device has that fact; choose another name")
        labels[name] = value
    if len(labels) > LABELS_MAX:
        raise Misuse(f"a device has at most {LABELS_MAX} labels, not {len(labels)}")
    return labels


@functools.lru_cache(maxsize=256)
def parse_where(text: str) -> Test:
    """Return a test of a device's labels and facts. An empty text takes every device. Raises Misuse."""
    if not text.strip():
        return lambda device: True
    if len(text) > EXPRESSION_MAX_CHARS:
        raise Misuse(f"where has at most {EXPRESSION_MAX_CHARS} characters, not {len(text)}")
    return _Reader(text).read()


class _Reader:
    """A recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._problem("is not understood", at)
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self._next = 0
        self._depth = 0

    def read(self) -> Test:
        test = self._any()
        if self._next < len(self._tokens):
            raise self._problem("expected `and` or `or`", self._tokens[self._next][2])
        return test

    def _peek(self) -> str:
        kind, text, _ = self._tokens[self._next] if self._next < len(self._tokens) else ("", "", 0)
        return "" if kind == "text" else text

    def _take(self, *expected: str) -> bool:
        if self._peek() in expected and self._peek():
            self._next += 1
            return True
        return False

    def _any(self) -> Test:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise Misuse(f"where has more than {_DEPTH_MAX} brackets within each other")
        tests = [self._all()]
        while self._take("or"):
            tests.append(self._all())
        self._depth -= 1
        return tests[0] if len(tests) == 1 else lambda device: any(test(device) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._take("and"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda device: all(test(device) for test in tests)

    def _one(self) -> Test:
        # Counted in a loop: a long row of `not` would overflow the stack by calls.
        is_turned = False
        while self._take("not"):
            is_turned = not is_turned
        if self._take("("):
            test = self._any()
            if not self._take(")"):
                raise self._expected("`)`")
        else:
            test = self._comparison()
        return (lambda device: not test(device)) if is_turned else test

    def _comparison(self) -> Test:
        name = self._value("a label or a fact")
        if not _LABEL_NAME.fullmatch(name) or name in _WORDS:
            raise self._problem(f"{name[:40]!r} is not the name of a label", self._tokens[self._next - 1][2])
        if self._take("=", "=="):
            value = self._value("a value")
            return lambda device: _is_same(device.get(name), value)
        if self._take("!="):
            value = self._value("a value")
            return lambda device: not _is_same(device.get(name), value)
        if (order := _ORDERS.get(self._peek())) is not None:
            self._next += 1
            limit = _number(self._value("a number"))
            if limit is None:
                raise self._problem("is not a number", self._tokens[self._next - 1][2])
            return lambda device: (held := _number(device.get(name))) is not None and order(held, limit)
        is_turned = self._take("not")
        if self._take("in"):
            values = self._values()
            return lambda device: any(_is_same(device.get(name), value) for value in values) is not is_turned
        if is_turned:
            raise self._expected("`in`")
        return lambda device: bool(device.get(name))

    def _values(self) -> tuple[str, ...]:
        if not self._take("("):
            raise self._expected("`(`")
        values = [self._value("a value")]
        while self._take(","):
            values.append(self._value("a value"))
        if not self._take(")"):
            raise self._expected("`)`")
        return tuple(values)

    def _value(self, what: str) -> str:
        if self._next >= len(self._tokens) or self._tokens[self._next][0] == "mark":
            raise self._expected(what)
        kind, text, _ = self._tokens[self._next]
        self._next += 1
        return text[1:-1] if kind == "text" else text

    def _expected(self, what: str) -> Misuse:
        at = self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)
        return self._problem(f"expected {what}", at)

    def _problem(self, what: str, at: int) -> Misuse:
        rest = self._text[at : at + 20].strip()
        place = f"at {rest!r}" if rest else "at its end"
        return Misuse(f"where: {what} {place}; write for example: room in (3, 4) and memory_mb > 900")


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < float("inf") else None


def _is_same(held: str | None, value: str) -> bool:
    if held is None:
        return False
    one, other = _number(held), _number(value)
    return one == other if one is not None and other is not None else held == value
