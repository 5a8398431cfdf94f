"""The page of chips is what the recordings and reports say; both chips are on it with the figures of their bring-ups."""

from conformance import chips


def test_the_page_is_of_the_committed_files() -> None:
    assert chips.PAGE.read_text("utf-8") == chips.page(), "python -m conformance.chips writes it anew"


def test_every_recording_and_every_kernel_of_a_chip_is_named() -> None:
    page = chips.page()
    files = [path for chip in chips.CHIPS for path in (chips.VECTORS / chip).glob("*.json")]
    assert len(files) > 15
    assert [path for path in files if f"`{path.relative_to(chips.ROOT)}`" not in page] == []
    named = [path for chip in chips.CHIPS for path in (chips.REPORTS / chip).glob("*.verify.json")]
    assert [path for path in named if f"`{path.parent.name}/{path.name}`" not in page] == []


def test_a_run_belongs_to_the_device_that_stands_beside_it() -> None:
    held = {
        "verdicts": [{"kernel": "a", "cases": 1}],
        "device": {"device": "NVIDIA H200"},
        "chips": [{"chip": "h100", "runs": [{"kernel": "b", "cases": 2}]}],
    }
    found = [(device, verdict["kernel"]) for device, verdict in chips.verdicts(held)]
    assert found == [("NVIDIA H200", "a"), ("h100", "b")]
