# make check                                what every change must pass
# make mutants [JOBS=4]                     single edits of the source: the tests that are named for each must refuse it
# make mutants AREA=ptx/checks              one area, one topic or one edit
# make mutants JOURNAL=build/mutants.db     finished edits are kept there; the same command goes on where it was ended
# make matrix                               other Pythons, NumPys, ml_dtypes and NVRTCs, each in an environment of its own
# make docs                                 the site in docs/_build/html: pages, API reference, codes, reports
BIN ?= .venv/bin/
JOBS ?= 2

.PHONY: check docs matrix mutants

check:
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)mypy
	$(BIN)lint-imports
	$(BIN)pytest -q -n auto --dist worksteal

docs:
	$(BIN)sphinx-build -q -W --keep-going -j $(JOBS) -b html docs docs/_build/html

matrix:
	$(BIN)python -m tests.matrix --jobs $(JOBS) -o conformance/reports/matrix.json
	$(BIN)python -m tests.matrix --page

mutants:
	$(BIN)python -m tests.mutants --jobs $(JOBS) $(if $(JOURNAL),--journal $(JOURNAL)) $(if $(AREA),$(AREA),--page)
