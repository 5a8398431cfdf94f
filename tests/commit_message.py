"""The commit-msg hook: a subject is an imperative of at most 72 characters about one change; the reason goes into the body.

python -m tests.commit_message .git/COMMIT_EDITMSG
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 72
WORDS = """
abandon accept acquire add adjust adopt advance agree align allocate allow annotate answer append apply arrive ask
assert avoid begin bind bound bring broadcast build bump cache call carry catch change check choose cite clamp clarify
clean clear close collect combine compare compile complete compress compute condense connect contain convert copy
correct count cover create cut deal declare decode define delete demand deprecate derive describe detect disable do
document draw drop embed emit enable encode end enforce escape execute exit expand expect explain export expose extend
extract fail feed fill find finish fix flag fold follow force forget format free gate gather generate give group guard
handle hash hide hold ignore implement import improve include infer initialize inline install interleave introduce
join keep know label land launch lay leave let lift limit link list load lock log look lower make map mark match
measure merge move multiply name narrow normalize note number open order overwrite pack pad park parse pass pause
perform pick pin place plan point poison prefer prepare present print process produce profile put quantize queue quote
raise read rebuild receive record recover redirect redraw reduce refactor refer refresh refuse regenerate register
reject release remember remove rename reorder repair repeat replace replay report request require reread reserve reset
reshape resolve restart restore restrict resume retry return reuse revert review reword rewrap rewrite round run save
say scale scan scatter search seek send separate serve set settle share shift shorten show shrink simplify simulate
skip sort speed spell split start state step stop store stream strip submit support suppress swap sync take teach tell
test tighten time trace track translate transpose treat trim try turn type unify unload unpack update upgrade upload
use validate verify visit wait walk warn watch widen wire withdraw wrap write yield
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
    words = re.sub(r"^(?!wip)[\w./`-]+(?: [\w-]+)?: +", "", subject, flags=re.IGNORECASE).split()
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
