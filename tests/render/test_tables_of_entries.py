"""Tables whose rows are made of entries: a column shows an attribute, an inner one, or what its function returns."""

from types import SimpleNamespace

import pytest

from refsim.render import Column, Table

ENTRY = SimpleNamespace(name="e4m3", bits=8, evidence=SimpleNamespace(what="formula"))


def test_a_column_takes_its_cell_from_the_entry():
    columns = (Column("name"), Column("why", of="evidence.what"), Column("twice", of=lambda entry: 2 * entry.bits))
    assert Table.of(columns, [ENTRY, ENTRY], "formats") == Table(columns, (("e4m3", "formula", 16),) * 2, "formats")


def test_a_column_without_its_attribute_is_a_bug_and_not_an_empty_cell():
    with pytest.raises(AttributeError, match="bias"):
        Table.of((Column("bias"),), [ENTRY])
