"""The answer of `refsim order`: the orders of one subject or two, and whether a result depends on its batch."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from refsim.errors import counted
from refsim.render import Wording

if TYPE_CHECKING:
    from refsim.bringup.order import Fingerprint, FirstDifference, SumOrder


def said(found: "Fingerprint", key: str = "") -> Wording:
    """Return the answer for one subject: every order with its sizes, the share it explains, and the verdict."""
    lines = [_asked(found)]
    for number, order in enumerate(found.orders, 1):
        lines.append(f"order {number}: {_where(found, order)}")
        lines += [f"  {line}" for line in order.lines]
        lines += [f"  {line}" for line in _borne_out(order)]
    for why in dict.fromkeys(each.why for each in found.sizes if each.why):
        lines.append(f"M = {', '.join(str(each.m) for each in found.sizes if each.why == why)}: {why}")
    lines += [*_verdict(found), _explained(found)]
    return Wording(tuple(lines), facts(found), key=key)


def _asked(found: "Fingerprint") -> str:
    subject = found.subject
    types = f"{subject.a_format} x {subject.b_format} -> {subject.d_format}"
    return f"{subject.name}: D (M, {subject.n}), each a sum of {subject.k} products, {types}"


def _where(found: "Fingerprint", order: "SumOrder") -> str:
    """Return the M that show an order, with the number of elements where it is not all of D."""
    parts = []
    for each in found.sizes:
        total = sum(count for _, count in each.classes)
        here = sum(count for known, count in each.classes if known is not None and known.is_like(order))
        if here:
            parts.append(f"{each.m}" if here == total else f"{each.m} ({here} of {counted(total, 'element')})")
    return f"M = {', '.join(parts)}"


def _borne_out(order: "SumOrder") -> list[str]:
    if not order.explains:
        return [f"does not explain the bits: it gives {order.equal:,} of {order.words:,} elements"]
    if order.reversed_equal == order.words:
        return ["the bits bear it out, but they do not tell it from the same order with K reversed; probing does"]
    return []


def _verdict(found: "Fingerprint") -> list[str]:
    rows = [each.m for each in found.sizes]
    difference = found.difference
    if not found.repeats:
        return ["not repeatable: the same test case gave other results in another run, so its batch was not examined"]
    if difference is None:
        seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
        return [f"batch invariant: M = {', '.join(map(str, rows))}, every row at every place, {seeds}"]
    smallest = f"from M = {difference.m} on" + (
        f" (M = {difference.agrees} agrees)" if difference.agrees > rows[0] else ""
    )
    words = f"{_element(difference, found)}, and {_spelled_code(difference.want, found)} at M = {rows[0]}"
    return [f"not batch invariant: {smallest} {words}"]


def _element(difference: "FirstDifference", found: "Fingerprint") -> str:
    return f"D[{difference.row}, {difference.column}] is {_spelled_code(difference.got, found)}"


def _spelled_code(code: int, found: "Fingerprint") -> str:
    from refsim.conversions import decode

    row = found.subject.d_format
    value = float(decode(row.code_dtype.type(code), row))
    return f"0x{code:0{row.code_dtype.itemsize * 2}x} ({value:.9g})"


def _explained(found: "Fingerprint") -> str:
    if not found.explains:
        return f"not explained: the orders found give {found.explained:,} of {found.words:,} elements"
    orders = "these orders" if len(found.orders) > 1 else "this order"
    return f"every element explained: computing in {orders} gives all {found.words:,}"


def versus(one: "Fingerprint", other: "Fingerprint", difference: "FirstDifference | None") -> Wording:
    """Return the line that compares two subjects: their orders, and the first element that differs."""
    alike = len(one.orders) == len(other.orders) and all(
        any(order.is_like(known) for known in other.orders) for order in one.orders
    )
    orders = "the same order" if alike and one.orders else "other orders"
    shared = [each.m for each in one.sizes if each.m in {size.m for size in other.sizes}]
    if difference is None:
        bits = f"equal results at M = {', '.join(map(str, shared))}" if shared else "no M in common"
    else:
        left, right = _element(difference, one), _spelled_code(difference.want, one)
        bits = f"at M = {difference.m} {left} in {one.subject.name}, {right} in {other.subject.name}"
    facts = {
        "same_order": bool(alike and one.orders),
        "rows": shared,
        "difference": None if difference is None else asdict(difference),
    }
    return Wording((f"{one.subject.name} against {other.subject.name}: {orders}; {bits}",), facts, key="against")


def facts(found: "Fingerprint") -> dict[str, Any]:
    """Return the facts about a subject for JSON, trees included."""
    from refsim.bringup.order.trees import nested

    subject, orders = found.subject, found.orders

    def numbered(order: "SumOrder | None") -> int | None:
        """Return the number of an order, from 1."""
        if order is None:
            return None
        return next(at for at, known in enumerate(orders, 1) if known.is_like(order))

    return {
        "subject": subject.name,
        "a_format": subject.a_format.name,
        "b_format": subject.b_format.name,
        "d_format": subject.d_format.name,
        "n": subject.n,
        "k": subject.k,
        "batch_invariant": found.is_batch_invariant,
        "difference": None if found.difference is None else asdict(found.difference),
        "repeatable": found.repeats,
        "words": found.words,
        "explained": found.explained,
        "calls": found.calls,
        "seeds": list(found.seeds),
        "sizes": [
            {
                "m": each.m,
                "orders": [{"order": numbered(order), "elements": count} for order, count in each.classes],
                "words": each.words,
                "explained": each.explained,
                **({"why": each.why} if each.why else {}),
            }
            for each in found.sizes
        ],
        "orders": [
            {
                "lines": list(order.lines),
                "words": order.words,
                "equal": order.equal,
                "reversed_equal": order.reversed_equal,
                "tree": nested(order.tree),
            }
            for order in orders
        ],
    }
