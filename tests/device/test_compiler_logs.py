"""The way out that an error of a compiler gives, from what stands in its log."""

import pytest

from refsim.device.assembling import refused


@pytest.mark.parametrize(
    ("header", "end"),
    [
        ("torch/extension.h", ": torch.utils.cpp_extension.include_paths() lists them"),
        ("mine.h", "[tool.refsim] include"),
    ],
)
def test_a_header_that_nvcc_does_not_find_is_in_a_folder_of_the_users(header: str, end: str) -> None:
    """nvcc takes headers of the host: it was asked for already."""
    error = refused(
        "compile-error", "nvcc refused k.cu", f"k.cu:1:10: fatal error: {header}: No such file or directory", ()
    )
    assert error.help.startswith(f"the folder of <{header}>: include=(folder,), -I FOLDER")
    assert error.help.endswith(end)
