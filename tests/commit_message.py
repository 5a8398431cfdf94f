"""The commit-msg hook: a subject is an imperative of at most 72 characters about one change; the reason goes into the body.

python -m tests.commit_message .git/COMMIT_EDITMSG
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 72
WORDS = """
accept add adjust adopt agree align allow annotate answer apply ask assert avoid begin bound bring build bump cache call
carry catch change check choose cite clarify clean collect combine compare compile complete compute condense convert
copy correct count cover cut deal declare decode define delete deprecate derive describe detect disable document draw
drop embed emit enable encode end enforce escape execute exit expand expect explain export expose extend extract fail
feed fill find finish fix flag fold follow force format gate generate give group guard handle hide hold ignore implement
import improve include infer initialize inline install introduce join keep know label land lay let lift limit link list
load lock log look lower make map mark match measure merge move name narrow normalize note open order pack parse pass
pin place plan point prefer prepare print process profile quote raise read rebuild record recover redraw reduce refactor
refer refresh refuse regenerate reject release remove rename reorder repair repeat replace replay report require reset
reshape resolve restore restrict retry return reuse revert review rewrap rewrite round run save say scale scan search
send separate serve set shorten show shrink simplify simulate skip sort speed spell split start state stop store stream
strip support suppress swap sync take teach tell test tighten time trace track translate treat trim try turn type unify
update upgrade use validate verify wait warn widen wire wrap write
"""
VERBS = frozenset(WORDS.split())


def faults(message: str) -> Iterator[str]:
    """Yield what is wrong with a commit message; comment lines that git adds are left out."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0].strip() if lines else ""
    if re.match(
        r"Merge (branch|branches|commit|pull request|remote-tracking|tag) |Revert \"|(fixup|squash|amend)! ", subject
    ):
        return
    if not subject:
        yield "the subject is empty"
        return
    if len(subject) > LONGEST:
        yield f"the subject has {len(subject)} characters, at most {LONGEST} are allowed; the reason goes into the body"
    words = re.sub(r"^(?!wip)[\w./`-]+: +", "", subject, flags=re.IGNORECASE).split()
    first = words[0].strip("`\"',")
    if first.lower().removeprefix("re-") not in VERBS or words[1:2] == ["of"]:
        yield f"the subject begins with {first!r}, no imperative of tests/commit_message.py: Add, Fix, Remove, Report, ..."
    if ";" in subject:
        yield "the subject has a semicolon: one commit is one change"
    if len(words) == 1:
        yield f"the subject has one word: say what you {first.lower()}"
    if re.search(r"#\d", subject):
        yield "the subject has the number of an issue: say in words what changes"
    if subject.endswith("."):
        yield "the subject ends with a full stop"
    elif subject[-1] in ",:!…。":
        yield f"the subject ends with {subject[-1]!r}"
    if len(lines) > 1 and lines[1].strip():
        yield "the second line is not empty: an empty line stands between subject and body"


def main() -> int:
    found = list(faults(Path(sys.argv[1]).read_text("utf-8-sig", "replace")))
    for fault in found:
        print(f"commit message: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
