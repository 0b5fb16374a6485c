"""Faults as people write them: one per line. Converts text to values and back; applies nothing.

fault  = word "(" who { "," amount | "," name "=" value } ")"
who    = node | "{" node { "," node } "}"
node   = "home" | "leader" | "all" | worker [ ".." worker ] | share
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal
from typing import Any

from shoal.errors import Misuse
from shoal.sim.faults import (
    FOREVER,
    KINDS,
    NEVER,
    AllWorkers,
    Apart,
    AtEpoch,
    AtRound,
    AtSecond,
    Fault,
    FullDisk,
    NodeKind,
    Part,
    SaveFate,
    When,
    Who,
    WorkerShare,
    kind_of,
    known_kind,
    worker_number,
)

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>[+-]?[0-9][0-9A-Za-z_%]*(\.[0-9][0-9A-Za-z_%]*)?)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\.\.|[(){},=])"
)
_NUMBER = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)([x%]?)")

#: The most digits of a round's or an epoch's number: a longer one is a typing error.
_COUNT_MAX_DIGITS = 9

#: Field -> an example. These are second values of faults, which have no name in the text.
_AMOUNTS = {"factor": "4x", "extra_s": "0.5", "share": "5%", "ahead_s": "+90"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


# Reading -----------------------------------------------------------------------------------------------


def parse(text: str, *, source: str = "faults") -> tuple[Fault, ...]:
    """Return the faults of a file, in its order. ``source`` is the name of the file in errors."""
    faults = []
    # Not splitlines: it also splits where no editor does, and the line numbers would be wrong.
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            tokens = _tokens(line.partition("#")[0])
            if tokens:
                faults.append(_Reader(tokens).fault())
        except Misuse as wrong:
            raise Misuse(f"{source}:{number}: {wrong}") from None
    return tuple(faults)


def _tokens(line: str) -> list[_Token]:
    tokens, at = [], 0
    while at < len(line):
        found = _TOKEN.match(line, at)
        if found is None:
            raise Misuse(f"column {at + 1}: {line[at]!r} has no meaning here")
        kind = str(found.lastgroup)
        if kind != "space":
            tokens.append(_Token(kind=kind, text=found[0], column=at + 1))
        at = found.end()
    return tokens


class _Reader:
    """The tokens of one line, read from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def fault(self) -> Fault:
        name = known_kind(self._word("the name of a fault"))
        made = KINDS[name]
        values: dict[str, Any] = {}
        self._sign("(", after=name, usage=_usage(name, made))
        if self._sees(")") or self._sees_name():
            raise Misuse(f"{name} needs to know who it strikes: {_usage(name, made)}")
        values["who"] = self._who()
        for field in _amounts(made):
            if not self._take(",") or self._sees_name():
                raise Misuse(f"{name} needs to know how much: {_usage(name, made)}")
            values[field] = _READERS[field](self, field)
        while self._take(","):
            field = self._option(name, made)
            if field in values:
                raise Misuse(f"{field} is given twice")
            values[field] = _READERS[field](self, field)
        self._sign(")", ",")
        if self._next < len(self._tokens):
            raise self._unexpected("the end of the line: one fault a line")
        return made(**values)

    # Nodes

    def _who(self) -> Who:
        if not self._take("{"):
            return Who((self._part(),))
        if self._take("}"):
            return Who(())
        parts = [self._part()]
        while self._take(","):
            parts.append(self._part())
        self._sign("}", ",")
        return Who(tuple(parts))

    def _part(self) -> Part:
        if self._kind() == "number":
            return WorkerShare(self.number("a share of the workers is written 30%", suffix="%"))
        name = self._word("a node")
        if name in list(NodeKind):
            return NodeKind(name)
        if name == "all":
            return WorkerShare(1.0)
        first = last = _worker(name)
        if self._take(".."):
            name = self._word("a worker")
            if name in (*NodeKind, "all"):
                raise Misuse(f"a range goes from worker to worker, like w1..w8, not to {name}")
            last = _worker(name)
        return AllWorkers(first, last)

    # Names and values

    def _option(self, name: str, made: type[Fault]) -> str:
        if not self._sees_name() and self._kind() != "word":
            raise self._unexpected(f"a name: {_usage(name, made)}")
        field, options = self._word("a name"), _options(made)
        if field not in options:
            raise Misuse(f"{name} has no {field!r}; {_instead(field, options)}")
        self._sign("=", after=field)
        return field

    def number(self, told: str, *, suffix: str = "") -> float:
        """Read a number with the right suffix. A share of 5% is 0.05."""
        if self._kind() != "number":
            raise self._unexpected(f"a number: {told}")
        token = self._token()
        found = _NUMBER.fullmatch(token.text)
        if found is None:
            raise Misuse(f"{token.text!r} is not a number; seconds are written 20 or 0.5, times 4x, shares 5%")
        if found[2] != suffix:
            raise Misuse(f"{told}, not {token.text}")
        # The decimal point moves in the text: 7 / 100 * 100 is not always 7.
        return float(f"{found[1]}e-2" if suffix == "%" else found[1])

    def seconds(self, field: str) -> float:
        return self.number(f"{field} is in seconds, like 20 or 0.5")

    def seconds_or(self, field: str, endless: str) -> float:
        """Read seconds, or the word that means "without end" here."""
        if self._kind() != "word":
            return self.seconds(field)
        word = self._token().text
        if word != endless:
            raise Misuse(f"{field} is a number of seconds or {endless}, not {word}")
        return FOREVER

    def when(self, field: str) -> When:
        if self._kind() != "word":
            return AtSecond(self.seconds(field))
        word = self._token().text
        if word not in ("round", "epoch"):
            what = f"{field} is a number of seconds, round(7) or epoch(2), not {word}"
            raise Misuse(what + _close(word, ["round", "epoch"], "; did you mean {}?"))
        self._sign("(", after=word)
        number = self._count(word)
        self._sign(")")
        return AtRound(number) if word == "round" else AtEpoch(number)

    def _count(self, word: str) -> int:
        text = self._token().text if self._kind() == "number" else ""
        if not re.fullmatch("[0-9]+", text):
            raise Misuse(f"{word} takes a whole number, like {word}(7)")
        if len(text) > _COUNT_MAX_DIGITS:
            raise Misuse(f"{word}({text[:_COUNT_MAX_DIGITS]}...) is further than any run goes")
        return int(text)

    def disk(self, field: str) -> SaveFate:
        word = self._word(f"{field}, one of {', '.join(SaveFate)}")
        if word not in list(SaveFate):
            raise Misuse(
                f"{field} is {', '.join(SaveFate)}, not {word}{_close(word, list(SaveFate), '; did you mean {}?')}"
            )
        return SaveFate(word)

    # Tokens

    def _kind(self) -> str:
        return self._tokens[self._next].kind if self._next < len(self._tokens) else "end"

    def _sees(self, text: str, *, ahead: int = 0) -> bool:
        at = self._next + ahead
        return at < len(self._tokens) and self._tokens[at].text == text

    def _sees_name(self) -> bool:
        return self._kind() == "word" and self._sees("=", ahead=1)

    def _token(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _take(self, sign: str) -> bool:
        seen = self._sees(sign)
        self._next += seen
        return seen

    def _word(self, wanted: str) -> str:
        if self._kind() != "word":
            raise self._unexpected(wanted)
        return self._token().text

    def _sign(self, *signs: str, after: str = "", usage: str = "") -> None:
        """Take the first of these signs. The error names the others too, since they could also have come."""
        if not self._take(signs[0]):
            wanted = " or ".join(f"'{sign}'" for sign in reversed(signs))
            raise self._unexpected(
                wanted + (f" after {after}" if after else "") + (f", as in {usage}" if usage else "")
            )

    def _unexpected(self, wanted: str) -> Misuse:
        if self._kind() == "end":
            return Misuse(f"the line ends too soon; next comes {wanted}")
        token = self._tokens[self._next]
        return Misuse(f"column {token.column}: {token.text!r} is not expected here; next comes {wanted}")


def _worker(name: str) -> int:
    number = worker_number(name)
    if number is None:
        close = _close(name, [*NodeKind, "all"], "; did you mean {}?")
        raise Misuse(
            f"there is no node {name!r}{close or '; there is: home, leader, all, w1, w2 and so on, w1..w8, 30%'}"
        )
    return number


_READERS: dict[str, Callable[[_Reader, str], object]] = {
    "factor": lambda reader, _: reader.number("how many times slower is written 4x", suffix="x"),
    "extra_s": lambda reader, _: reader.number("a delay is in seconds, like 0.5"),
    "share": lambda reader, _: reader.number("a share is written 5%", suffix="%"),
    "ahead_s": lambda reader, _: reader.number("how far a clock is ahead is in seconds, like +90"),
    "at": _Reader.when,
    "for_s": lambda reader, field: reader.seconds_or(field, "forever"),
    "restart_s": lambda reader, field: reader.seconds_or(field, "never"),
    "back_s": lambda reader, field: reader.seconds_or(field, "never"),
    "disk": _Reader.disk,
}


def _amounts(made: type[Fault]) -> list[str]:
    return [field.name for field in fields(made) if field.name in _AMOUNTS]


def _options(made: type[Fault]) -> list[str]:
    return [field.name for field in fields(made) if field.default is not MISSING]


def _usage(name: str, made: type[Fault]) -> str:
    others: dict[type[Fault], str] = {FullDisk: "home", Apart: "{w1, leader}"}
    who = others.get(made, "w1")
    amounts = [_AMOUNTS[field] for field in _amounts(made)]
    return f"{name}({', '.join([who, *amounts, *(f'{option}=...' for option in _options(made))])})"


def _close(word: str, names: Iterable[str], told: str) -> str:
    close = difflib.get_close_matches(word.lower(), [str(name) for name in names], n=1)
    return told.format(close[0]) if close else ""


def _instead(word: str, names: Iterable[str]) -> str:
    names = list(names)
    return _close(word, names, "did you mean {}?") or f"there is: {', '.join(names)}"


# Writing -----------------------------------------------------------------------------------------------


def write(faults: Iterable[Fault]) -> str:
    """A file that ``parse`` reads back as the same faults. What is as usual is left out."""
    return "".join(f"{_line(fault)}\n" for fault in faults)


def _line(fault: Fault) -> str:
    values = [_who_text(fault.who)]
    values += (_amount_text(name, getattr(fault, name)) for name in _amounts(type(fault)))
    for field in fields(fault):
        value = getattr(fault, field.name)
        if field.name == "at" or (field.default is not MISSING and value != field.default):
            values.append(f"{field.name}={_option_text(value)}")
    return f"{kind_of(fault)}({', '.join(values)})"


def _who_text(who: Who) -> str:
    parts = [_part_text(part) for part in who.parts]
    return parts[0] if len(parts) == 1 else f"{{{', '.join(parts)}}}"


def _part_text(part: Part) -> str:
    match part:
        case NodeKind():
            return str(part)
        case WorkerShare(share):
            return "all" if share == 1 else _percent(share)
        case AllWorkers(first, last):
            return f"w{first}" if first == last else f"w{first}..w{last}"


def _amount_text(field: str, value: float) -> str:
    match field:
        case "factor":
            return f"{_plain(value)}x"
        case "share":
            return _percent(value)
        case "ahead_s" if value >= 0:
            return f"+{_plain(abs(value))}"
    return _plain(value)


def _option_text(value: Any) -> str:
    match value:
        case AtRound(n):
            return f"round({n})"
        case AtEpoch(n):
            return f"epoch({n})"
        case AtSecond(s):
            return _plain(s)
        case SaveFate():
            return str(value)
    # What lasts forever does so as usual, and is left out.
    return "never" if value == NEVER else _plain(value)


def _percent(share: float) -> str:
    return f"{_plain(Decimal(repr(share)) * 100)}%"


def _plain(number: float | Decimal) -> str:
    """All digits, no exponent: 1e-05 -> 0.00001."""
    text = format(number if isinstance(number, Decimal) else Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
