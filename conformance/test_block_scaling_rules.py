"""The tables of the report of quantization schemes are computed from `refsim.scaling.RECIPES`."""

from conformance.block_scaling_rules import PAGE, TABLES, renewed


def test_the_report_has_the_tables_that_its_command_computes() -> None:
    text = PAGE.read_text("utf-8")
    assert renewed(text) == text
    for rows in TABLES.values():
        assert "\n".join(rows()) in text
