# make check                                what every change must pass
# make mutants [JOBS=4]                     single edits of the source: the tests that are named for each must refuse it
# make mutants AREA=ptx/checks              one area, one topic or one edit
# make mutants RESUME=build/mutants.jsonl   verdicts are kept there, and those that stand there are not asked for again
# make docs                                 the site in docs/_build/html: pages, API reference, codes, executed notebooks
BIN ?= .venv/bin/
JOBS ?= 2

.PHONY: check docs mutants

check:
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)mypy
	$(BIN)lint-imports
	$(BIN)pytest -q -n auto --dist worksteal

docs:
	$(BIN)sphinx-build -q -W --keep-going -b html docs docs/_build/html

mutants:
	$(BIN)python tests/mutants.py --jobs $(JOBS) $(if $(RESUME),--resume $(RESUME)) $(if $(AREA),$(AREA),--report conformance/reports/mutants.md)
