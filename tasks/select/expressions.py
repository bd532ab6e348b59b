"""Rules as expressions over signals: parsed by `ast`, only listed nodes allowed, computed by Arrow; nothing is eval'd.

    num_words < 50                                   signals, numbers, < <= > >= == !=, also chained: 1 < num_words < 9
    quality_score < 0.2 and num_words < 200          and, or, not, parentheses
    num_cut_short_lines / num_sentences > 0.5        + - * /
    language in ("ja", "th") and num_chars < 500     in, not in, texts; language codes are checked and normalised

An expression that is true of a document drops it. A null signal makes a comparison null, and null goes through and, or,
not as in SQL (false and null is false, true or null is true); division by zero is null. A document whose result is null
passes: the rule was not applied to it, which is counted.
"""

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.languages import check_language_code
from tasks.signal_table import SIGNAL_BY_NAME, SIGNALS, Kind

Type = Literal["number", "text", "truth"]
TYPE_OF: dict[Kind, Type] = {"string": "text", "int64": "number", "double": "number"}  # other signals are no operands
MAX_CHARS, MAX_NODES = 1000, 200  # nodes bound the depth, hence the recursion over them
MAX_NUMBER = 1e300
LANGUAGE = "language"

COMPARISONS: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: pc.less, ast.LtE: pc.less_equal, ast.Gt: pc.greater, ast.GtE: pc.greater_equal,
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: pc.add, ast.Sub: pc.subtract, ast.Mult: pc.multiply, ast.Div: lambda a, b: _divide(a, b),
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A checked expression. `threshold`: the number in a comparison of one signal with one number, else None."""

    text: str
    root: ast.expr
    signals: tuple[str, ...]
    threshold: float | None

    def judge(self, table: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each row of a table of signals: is it true, and is it null (not applied)."""
        result = _value(self.root, table)
        return np.asarray(pc.fill_null(result, False)), np.asarray(pc.is_null(result))


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> Expression:
    """Raises ValueError that says what is wrong and what is allowed."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"an expression has at most {MAX_CHARS} characters, not {len(text)}")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {error.msg} at character {_place(text, error)}") from error
    if sum(1 for _ in ast.walk(root)) > MAX_NODES:
        raise ValueError(f"an expression has at most {MAX_NODES} names, numbers and operators")
    if (kind := _type(root)) != "truth":
        raise ValueError(f"this is a {kind}; a rule is a comparison, such as num_words < 50")
    names = dict.fromkeys(node.id for node in ast.walk(root) if isinstance(node, ast.Name))
    if not names:
        raise ValueError("names no signal, so it is true of all documents or of none")
    return Expression(text, root, tuple(names), _threshold(root))


def _place(text: str, error: SyntaxError) -> int:
    """The character, from 1 on, at which Python gave up; one past the last where it wanted more."""
    stripped = text.strip()
    before = sum(map(len, stripped.splitlines(keepends=True)[: (error.lineno or 1) - 1]))
    own = before + error.offset if error.offset else len(stripped) + 1
    return len(text) - len(text.lstrip()) + min(own, len(stripped) + 1)


# --- checking ------------------------------------------------------------------------------------------------------


def _type(node: ast.expr) -> Type:
    """The type of an expression whose parts fit together. Raises ValueError."""
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            return _type_of_constant(value)
        case ast.Name(id=name):
            return _type_of_signal(name)
        case ast.BoolOp(values=values):
            return _all("truth", values, node)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _all("truth", [operand], node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _all("number", [operand], node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            kind = _all("number", [left, right], node)
            if isinstance(op, ast.Div):
                _check_divisor(right)
            return kind
        case ast.Compare():
            return _type_of_comparison(node)
    raise ValueError(
        f"{ast.unparse(node)!r} is not allowed; write comparisons of signals, numbers and texts, and, or, not, + - * /"
    )


def _check_divisor(node: ast.expr) -> None:
    """Raises ValueError for a constant 0: the result would be null for every document."""
    is_constant = not any(isinstance(part, ast.Name) for part in ast.walk(node))
    if is_constant and _value(node, pa.table({})).as_py() == 0:
        raise ValueError(f"division by {ast.unparse(node)}, which is zero: the rule would apply to no document")


def _type_of_constant(value: str | int | float) -> Type:
    if isinstance(value, str):
        return "text"
    if not abs(value) <= MAX_NUMBER:
        raise ValueError("a number is too large")
    return "number"


def _all(wanted: Type, operands: list[ast.expr], whole: ast.expr) -> Type:
    for operand in operands:
        if (kind := _type(operand)) != wanted:
            raise ValueError(f"{ast.unparse(operand)} is a {kind}, but {ast.unparse(whole)!r} needs a {wanted} there")
    return wanted


def _type_of_signal(name: str) -> Type:
    signal = SIGNAL_BY_NAME.get(name)
    if signal is None:
        close = difflib.get_close_matches(name, SIGNAL_BY_NAME, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        known = ", ".join(s.name for s in SIGNALS if s.type in TYPE_OF)
        raise ValueError(f"there is no signal {name}; {hint}signals are: {known}")
    if signal.type not in TYPE_OF:
        raise ValueError(f"signal {name} is neither a number nor a text ({signal.type})")
    return TYPE_OF[signal.type]


def _type_of_comparison(node: ast.Compare) -> Type:
    for left, op, right in _pairs(node):
        _check_comparison(left, op, right)
    return "truth"


def _check_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
    kind = _type(left)
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            raise ValueError(f"after in, write a list of constants, not {ast.unparse(right)}")
        if not all(isinstance(item, ast.Constant) for item in right.elts):
            raise ValueError(f"{ast.unparse(right)}: only constants may stand in a list")
        others = right.elts
    else:
        if type(op) not in COMPARISONS:
            raise ValueError("is and is not are not allowed; a null signal never drops a document")
        if kind == "truth" or (kind == "text" and not isinstance(op, ast.Eq | ast.NotEq)):
            raise ValueError(f"{ast.unparse(left)} is a {kind}, which has no order and no size")
        others = [right]
    for other in others:
        if (found := _type(other)) != kind:
            raise ValueError(f"{ast.unparse(left)} is a {kind}, but {ast.unparse(other)} is a {found}")
        _normalise_code(left, other)
        _normalise_code(other, left)


def _normalise_code(signal: ast.expr, constant: ast.expr) -> None:
    """A language code that `language` is compared with; raises ValueError for one that it never has."""
    if isinstance(signal, ast.Name) and signal.id == LANGUAGE and isinstance(constant, ast.Constant):
        constant.value = check_language_code(str(constant.value))


def _pairs(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    return zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)


def _threshold(root: ast.expr) -> float | None:
    """The number in `signal < number` or `number > signal`."""
    match root:
        case ast.Compare(left=ast.Name(), comparators=[other]) | ast.Compare(left=other, comparators=[ast.Name()]):
            sign, other = (-1, other.operand) if isinstance(other, ast.UnaryOp) else (1, other)
            if isinstance(other, ast.Constant) and isinstance(other.value, int | float):
                return sign * float(other.value)
    return None


# --- computing -----------------------------------------------------------------------------------------------------


def _value(node: ast.expr, table: pa.Table) -> Any:
    """Arrow array (or scalar) of a checked expression; numbers are doubles."""
    match node:
        case ast.Name(id=name):
            column = table[name]
            return column if column.type == pa.string() else column.cast(pa.float64(), safe=False)
        case ast.Constant(value=value):
            return pa.scalar(value if isinstance(value, str) else float(value))  # type: ignore[arg-type]
        case ast.BoolOp(op=op, values=values):
            combine = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
            return reduce(combine, (_value(value, table) for value in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return pc.invert(_value(operand, table))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, table)
            return pc.negate(value) if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return ARITHMETIC[type(op)](_value(left, table), _value(right, table))
        case ast.Compare():
            compared = [_compare(_value(left, table), op, right, table) for left, op, right in _pairs(node)]
            return reduce(pc.and_kleene, compared)
    raise TypeError(f"{ast.unparse(node)} was not checked")


def _compare(left: Any, op: ast.cmpop, right: ast.expr, table: pa.Table) -> Any:
    if type(op) in COMPARISONS:
        return COMPARISONS[type(op)](left, _value(right, table))
    constants = pa.array([_value(item, table).as_py() for item in right.elts])  # type: ignore[attr-defined]
    found = pc.is_in(left, constants)
    found = pc.if_else(pc.is_valid(left), found, pa.scalar(None, pa.bool_()))
    return found if isinstance(op, ast.In) else pc.invert(found)


def _divide(dividend: Any, divisor: Any) -> Any:
    return pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), pc.divide(dividend, divisor))
