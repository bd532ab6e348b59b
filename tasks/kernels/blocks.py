"""Blocks of 64 bytes as machine vectors: what numba has no words for and LLVM's vectoriser does not find.

LLVM lowers the vectors to what the machine has (one AVX-512 register, two of AVX2, four of SSE or NEON).
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK_BYTES = 64
BYTES = ir.VectorType(ir.IntType(8), BLOCK_BYTES)


def _constant(value: int) -> Any:
    return ir.Constant(BYTES, [value] * BLOCK_BYTES)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(cgutils.gep_inbounds(builder, data, index), BYTES.as_pointer())


def _load(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    block = builder.load(_pointer(context, builder, array_type, array, index))
    block.align = 1
    return block


def _in_range(builder: Any, block: Any, first: str, number: int) -> Any:
    """Which bytes are among `number` characters from `first` on."""
    return builder.icmp_unsigned("<", builder.sub(block, _constant(ord(first))), _constant(number))


def _is_letter(builder: Any, block: Any) -> Any:
    return _in_range(builder, builder.or_(block, _constant(32)), "a", 26)


@intrinsic
def ascii_classes(typingctx: Any, data: Any, at: Any) -> Any:
    """(letters, digits, dots and commas, not ASCII) of data[at : at + 64] as sets of 64 bits; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _load(context, builder, signature.args[0], *arguments)
        point = builder.icmp_unsigned("==", builder.and_(block, _constant(0xFD)), _constant(ord(",")))
        high = builder.icmp_signed("<", block, _constant(0))
        classes = (_is_letter(builder, block), _in_range(builder, block, "0", 10), point, high)
        bits = [builder.bitcast(which, ir.IntType(BLOCK_BYTES)) for which in classes]
        return context.make_tuple(builder, signature.return_type, bits)

    return types.UniTuple(types.uint64, 4)(data, types.intp), generate


@intrinsic
def copy_folded(typingctx: Any, data: Any, at: Any, out: Any, size: Any) -> Any:
    """out[size : size + 64] = data[at : at + 64], letters lower-cased, digits "0", the rest spaces; unchecked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _load(context, builder, signature.args[0], *arguments[:2])
        other = builder.select(_in_range(builder, block, "0", 10), _constant(ord("0")), _constant(ord(" ")))
        folded = builder.select(_is_letter(builder, block), builder.or_(block, _constant(32)), other)
        builder.store(folded, _pointer(context, builder, signature.args[2], *arguments[2:])).align = 1
        return context.get_dummy_value()

    return types.void(data, types.intp, out, types.intp), generate


@intrinsic
def count_ones(typingctx: Any, bits: Any) -> Any:
    """The number of ones among 64 bits."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def trailing_zeros(typingctx: Any, bits: Any) -> Any:
    """The number of zeros below the lowest one; 64 where there is none."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.cttz(arguments[0], no)
