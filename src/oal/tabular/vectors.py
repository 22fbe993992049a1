"""Eight numbers at a time in compiled code: a Numba type for the contents of a vector register.

A `Vector` is a row of an array `[n, 8]`: `load` and `store` move whole rows, `gather` and `scatter` take every lane
from a row of its own. `+ - * /`, `maximum`, `minimum` and `square_root` round each lane as the scalar operation does,
so a lane computes bit for bit what scalar code would. LLVM makes of it what the processor has: one instruction for
eight numbers (AVX-512), or two (AVX), or four (SSE2, NEON).
"""

import operator
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model
from numpy.typing import DTypeLike, NDArray

from oal.tabular.fastmath import LN2_HIGH, LN2_LOW, LOG2_E, ONE_BITS, ROUND, jit_inlined, taylor

_compiled: Any = intrinsic  # what it makes is called without the typing context, which a type checker cannot know
_typed: Any = infer_global
LANES = 8
_LINE = 64  # bytes of a cache line, which a row fills exactly


class Vector(types.Type):
    """Numba's type of eight float64 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


VECTOR = Vector()
_DOUBLE, _WHOLE = ir.DoubleType(), ir.IntType(64)
_DOUBLES, _WHOLES = ir.VectorType(_DOUBLE, LANES), ir.VectorType(_WHOLE, LANES)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _DOUBLES)


def rows(*shape: int, dtype: DTypeLike = np.float64, fill: float = 0) -> NDArray[Any]:
    """Make an array `[*shape, 8]` whose rows begin where cache lines do: a row across two lines costs two accesses."""
    size = int(np.prod(shape)) * LANES
    memory = np.empty(size + LANES, dtype=dtype)
    first = -memory.ctypes.data % _LINE // memory.itemsize
    found = memory[first : first + size].reshape(*shape, LANES)
    found[...] = fill
    return found


def _constant(number: float | int, of: ir.VectorType) -> ir.Constant:
    return ir.Constant(of, [number] * LANES)


def _splat(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(_DOUBLES, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _widened(builder: Any, kinds: Any, values: Any) -> list[Any]:
    """Turn numbers among the operands into vectors."""
    return [v if isinstance(kind, Vector) else _splat(builder, v) for kind, v in zip(kinds, values, strict=True)]


# Arithmetic: vectors with vectors, and with numbers -------------------------------------------------------------------


def _arithmetic(symbol: Any, instruction: str) -> None:
    @_typed(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and VECTOR in args and all(arg in (VECTOR, types.float64) for arg in args):
                return signature(VECTOR, *args)
            return None

    def lower(_: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*_widened(builder, sig.args, args))

    for kinds in ((VECTOR, VECTOR), (VECTOR, types.float64), (types.float64, VECTOR)):
        lower_builtin(symbol, *kinds)(lower)


for _symbol, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _arithmetic(getattr(operator, _symbol), _instruction)
    _arithmetic(getattr(operator, f"i{_symbol}"), _instruction)


def _elementwise(build: Any, operands: int) -> Any:
    """Return a compiled function of so many vectors or numbers, made of the vectors by `build(builder, *vectors)`."""
    if operands == 1:

        @_compiled
        def one(_: Any, x: Any) -> Any:
            return VECTOR(x), lambda context, builder, sig, args: build(builder, *_widened(builder, sig.args, args))

        return one

    @_compiled
    def two(_: Any, x: Any, y: Any) -> Any:
        return VECTOR(x, y), lambda context, builder, sig, args: build(builder, *_widened(builder, sig.args, args))

    return two


def _chosen(comparison: str) -> Any:
    """Build Python's max and min: the second if it compares so to the first, else the first."""

    def build(builder: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, y, x), y, x)

    return build


def _square_root(builder: Any, x: Any) -> Any:
    kind = ir.FunctionType(_DOUBLES, [_DOUBLES])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v8f64"), [x])


def _power_of_two(builder: Any, x: Any) -> Any:
    bits = builder.shl(builder.bitcast(x, _WHOLES), _constant(52, _WHOLES))
    return builder.bitcast(builder.add(bits, _constant(ONE_BITS, _WHOLES)), _DOUBLES)


@_compiled
def folded(_: Any, x: Any) -> Any:
    """Return the sum of a vector: its halves added, then theirs, then theirs."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [builder.fadd(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    return types.float64(x), codegen


@_compiled
def uniforms(_: Any, stream: Any) -> Any:
    """Draw from [0, 1) in every lane; lane l draws as `fastmath.uniform` does from `stream[:, l]`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def shifted(x: Any, left: int) -> Any:
            return builder.shl(x, _constant(left, _WHOLES))

        def rotated(x: Any, left: int) -> Any:
            return builder.or_(shifted(x, left), builder.lshr(x, _constant(64 - left, _WHOLES)))

        rows = [_row(context, builder, sig.args[0], args[0], ir.Constant(_WHOLE, i)) for i in range(4)]
        rows = [builder.bitcast(row, _WHOLES.as_pointer()) for row in rows]
        a, b, c, d = (builder.load(row, align=8) for row in rows)
        word = builder.add(rotated(builder.add(a, d), 23), a)
        c, d = builder.xor(c, a), builder.xor(d, b)
        state = builder.xor(a, d), builder.xor(b, c), builder.xor(c, shifted(b, 17)), rotated(d, 45)
        for row, x in zip(rows, state, strict=True):
            builder.store(x, row, align=8)
        high = builder.uitofp(builder.lshr(word, _constant(11, _WHOLES)), _DOUBLES)
        return builder.fmul(high, _constant(1.0 / 9007199254740992.0, _DOUBLES))

    return VECTOR(stream), codegen


splat = _elementwise(lambda _, x: x, 1)
"""Return a vector of one number eight times."""
maximum, minimum = _elementwise(_chosen(">"), 2), _elementwise(_chosen("<"), 2)
square_root = _elementwise(_square_root, 1)
_power_of_rounded = _elementwise(_power_of_two, 1)


@jit_inlined
def exponential(x):
    """Return exp(x) for x <= 0, bit for bit as `fastmath.exponentials` does."""
    y = maximum(x, -708.0)
    shifted = y * LOG2_E + ROUND
    n = shifted - ROUND
    r = (y - n * LN2_HIGH) - n * LN2_LOW
    return taylor(r) * _power_of_rounded(shifted)


# Memory. Rows are not checked to be inside: the callers' loops see to that -------------------------------------------


def _row(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Return the address of an array's row."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [builder.mul(row, ir.Constant(row.type, LANES))])


def _lanes(builder: Any, row: Any) -> list[Any]:
    """Return the addresses of a row's lanes."""
    return [builder.gep(row, [ir.Constant(_WHOLE, lane)]) for lane in range(LANES)]


def _rows_of_lanes(context: Any, builder: Any, kinds: Any, args: Any) -> list[Any]:
    """Return, of (values, first, places, i, step), the address of `values[first + places[i, lane] * step, lane]`."""
    values, first, places, i, step = args
    data = context.make_array(kinds[0])(context, builder, values).data
    found = []
    for lane, place in enumerate(_lanes(builder, _row(context, builder, kinds[2], places, i))):
        at = builder.add(first, builder.mul(builder.load(place), step))
        at = builder.add(builder.mul(at, ir.Constant(_WHOLE, LANES)), ir.Constant(_WHOLE, lane))
        found.append(builder.gep(data, [at]))
    return found


@_compiled
def load(_: Any, array: Any, row: Any) -> Any:
    """Return a row."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = builder.bitcast(_row(context, builder, sig.args[0], *args), _DOUBLES.as_pointer())
        return builder.load(address, align=8)

    return VECTOR(array, types.int64), codegen


@_compiled
def store(_: Any, array: Any, row: Any, vector: Any) -> Any:
    """Write a row."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = builder.bitcast(_row(context, builder, sig.args[0], *args[:2]), _DOUBLES.as_pointer())
        builder.store(args[2], address, align=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, VECTOR), codegen


@_compiled
def gather(_: Any, values: Any, first: Any, places: Any, i: Any, step: Any) -> Any:
    """Return `values[first + places[i, lane] * step, lane]` for every lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = ir.Constant(_DOUBLES, ir.Undefined)
        for lane, address in enumerate(_rows_of_lanes(context, builder, sig.args, args)):
            found = builder.insert_element(found, builder.load(address), ir.Constant(ir.IntType(32), lane))
        return found

    return VECTOR(values, types.int64, places, types.int64, types.int64), codegen


def _scattered(context: Any, builder: Any, sig: Any, args: Any, *, add: bool) -> Any:
    one = ir.Constant(_WHOLE, 1)
    for lane, address in enumerate(_rows_of_lanes(context, builder, sig.args, (*args[:4], one))):
        x = builder.extract_element(args[4], ir.Constant(ir.IntType(32), lane))
        builder.store(builder.fadd(builder.load(address), x) if add else x, address)
    return context.get_dummy_value()


@_compiled
def scatter(_: Any, values: Any, first: Any, places: Any, i: Any, vector: Any) -> Any:
    """Write each lane into `values[first + places[i, lane], lane]`."""
    return types.void(values, types.int64, places, types.int64, VECTOR), partial(_scattered, add=False)


@_compiled
def scatter_add(_: Any, values: Any, first: Any, places: Any, i: Any, vector: Any) -> Any:
    """Add each lane to `values[first + places[i, lane], lane]`."""
    return types.void(values, types.int64, places, types.int64, VECTOR), partial(_scattered, add=True)


@_compiled
def where_zero(_: Any, places: Any, i: Any, vector: Any, other: Any) -> Any:
    """Return the lanes of the first vector where `places[i, lane]` is 0, those of the other one elsewhere."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = builder.bitcast(_row(context, builder, sig.args[0], *args[:2]), _WHOLES.as_pointer())
        zero = builder.icmp_signed("==", builder.load(address, align=8), _constant(0, _WHOLES))
        return builder.select(zero, args[2], args[3])

    return VECTOR(places, types.int64, VECTOR, VECTOR), codegen
