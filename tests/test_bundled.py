"""Files that travel with refsim, in the places where a wheel and a checkout have them."""

from pathlib import Path

import pytest

import refsim.bundled
from refsim.bundled import bundled
from refsim.errors import Kind, RefsimError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with nothing beside or in it."""
    folder = tmp_path / "refsim"
    folder.mkdir()
    monkeypatch.setattr(refsim.bundled, "PACKAGE", folder)
    return folder


def test_a_checkout_has_them_beside_the_package(package: Path) -> None:
    (package.parent / "gpu").mkdir()
    assert bundled("gpu") == package.parent / "gpu"


def test_an_installed_package_has_them_inside_and_looks_there_first(package: Path) -> None:
    (package.parent / "gpu").mkdir()  # somebody else's, beside it in site-packages
    (package / "_bundled" / "gpu").mkdir(parents=True)
    assert bundled("gpu") == package / "_bundled" / "gpu"


@pytest.mark.usefixtures("package")
def test_a_damaged_installation_is_named() -> None:
    with pytest.raises(RefsimError, match=r"gpu/bindings\.py is not here") as caught:
        bundled("gpu/bindings.py")
    assert (caught.value.code, caught.value.kind) == ("no-such-file", Kind.MISSING)
