"""The language of ``match.condition``: a comparison of what a trial measured, parsed and never evaluated as Python.

Names are ``capture`` (what the pattern's regex captured on the line: a number if it reads as one, else text),
``exit_code``, ``walltime_sec`` and ``peak_vram_mib``. There are numbers, text in quotes, ``True`` and ``False``;
``< <= > >= == !=`` (chained too), ``and or not``, ``+ - /`` and ``math.isnan(x)``, ``math.isinf(x)``; nothing else.

A value that is not there is *unknown*: a name that was not measured, a division by zero, text where a
number is needed, a comparison of text with a number. Unknown passes through arithmetic, comparisons, ``not`` and the
two functions. ``False and unknown`` is false and ``True or unknown`` is true, in either order; else unknown stays. A
condition holds only when it is true, never when it is unknown. NaN is a number that is unequal to every number.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import ast
import math
import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Value = bool | float | str | None
    Evaluate = Callable[[Mapping[str, Value]], Value]

MAX_LENGTH = 256
"""Characters in a condition."""

NAMES: tuple[str, ...] = ("capture", "exit_code", "walltime_sec", "peak_vram_mib")
"""What a condition may name."""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[[float], bool]] = {"isnan": math.isnan, "isinf": math.isinf}


class ConditionError(ValueError):
    """A condition that is not of this language; the message says what is wrong and what would be right."""


class Condition:
    """A parsed condition.

    Attributes:
        text: The condition as it was written.
        names: The names that it uses.
    """

    def __init__(self, text: str) -> None:
        """Parses a condition.

        Args:
            text: At most ``MAX_LENGTH`` characters.

        Raises:
            ConditionError: It is not of this language.
        """
        if len(text) > MAX_LENGTH:
            raise ConditionError(f"has {len(text)} characters; {MAX_LENGTH} are allowed")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ConditionError(f"cannot be parsed: {reason}") from error
        self.text = text
        self.names: set[str] = set()
        self._evaluate = self._build(tree.body)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Tells whether the condition is true; an unknown one is not.

        Args:
            values: What the names stand for; one that is missing or None is unknown.
        """
        return _truth(self._evaluate(values)) is True

    def _build(self, node: ast.expr) -> Evaluate:
        """Turns a node of the syntax tree into a function; the only way in is a kind of node that is listed here."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                constant = value if isinstance(value, bool | str) else _number(value)
                return lambda _values: constant
            case ast.Name(id=name) if name in NAMES:
                self.names.add(name)
                return lambda values: values.get(name)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return _negation(self._build(inner))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
                factor = -1.0 if isinstance(sign, ast.USub) else 1.0
                return _arithmetic(lambda left, right: left * right, lambda _values: factor, self._build(inner))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _arithmetic(_ARITHMETIC[type(op)], self._build(left), self._build(right))
            case ast.BoolOp(op=op, values=values):
                return _boolean(isinstance(op, ast.Or), [self._build(value) for value in values])
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                return _comparison(
                    [_COMPARISONS[type(op)] for op in ops], [self._build(one) for one in (left, *others)]
                )
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr=attribute), args=[argument], keywords=[]
            ) if attribute in _FUNCTIONS and not isinstance(argument, ast.Starred):
                return _function(_FUNCTIONS[attribute], self._build(argument))
        raise ConditionError(
            f"'{ast.unparse(node)}' is not allowed; there are {', '.join(NAMES)}, numbers, text, comparisons, "
            "and, or, not, + - /, math.isnan and math.isinf"
        )


def number_or_text(text: str) -> float | str:
    """Returns captured text as a number if it reads as one (``1e-3``, ``nan``, ``-inf``), else as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def _number(value: Value) -> float | None:
    """Returns a number, or None for what is none: text, truth and what is too large."""
    if isinstance(value, bool | str) or value is None:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _truth(value: Value) -> bool | None:
    """Returns what a value is as a truth: a number's is whether it is other than zero, text has none."""
    if isinstance(value, bool) or value is None:
        return value
    number = _number(value)
    return None if number is None else number != 0


def _negation(inner: Evaluate) -> Evaluate:
    def evaluate(values: Mapping[str, Value]) -> Value:
        truth = _truth(inner(values))
        return None if truth is None else not truth

    return evaluate


def _boolean(decisive: bool, parts: list[Evaluate]) -> Evaluate:
    """``or`` is decided by the first true part, ``and`` by the first false one."""

    def evaluate(values: Mapping[str, Value]) -> Value:
        unknown = False
        for part in parts:
            truth = _truth(part(values))
            if truth is decisive:
                return decisive
            unknown = unknown or truth is None
        return None if unknown else not decisive

    return evaluate


def _arithmetic(operation: Callable[[float, float], float], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(values: Mapping[str, Value]) -> Value:
        first, second = _number(left(values)), _number(right(values))
        if first is None or second is None:
            return None
        try:
            return operation(first, second)
        except (ZeroDivisionError, OverflowError):
            return None

    return evaluate


def _comparison(operations: list[Callable[[Any, Any], bool]], parts: list[Evaluate]) -> Evaluate:
    def evaluate(values: Mapping[str, Value]) -> Value:
        found = [part(values) for part in parts]
        unknown = False
        for operation, left, right in zip(operations, found, found[1:], strict=False):
            result = _compared(operation, left, right)
            if result is False:
                return False
            unknown = unknown or result is None
        return None if unknown else True

    return evaluate


def _compared(operation: Callable[[Any, Any], bool], left: Value, right: Value) -> bool | None:
    """Compares text with text, truth with truth and number with number; anything else is unknown."""
    if left is None or right is None:
        return None
    for kind in (str, bool):
        if isinstance(left, kind) or isinstance(right, kind):
            return operation(left, right) if isinstance(left, kind) and isinstance(right, kind) else None
    return operation(left, right)


def _function(function: Callable[[float], bool], inner: Evaluate) -> Evaluate:
    def evaluate(values: Mapping[str, Value]) -> Value:
        number = _number(inner(values))
        return None if number is None else function(number)

    return evaluate
