"""The rules of the supervisor's scripted model, which depend only on the text it sees."""

import re

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from scripted import calls

PLAN = {
    "inventory": "Count the nightly dumps on heron",
    "restore-test": "Verify the nightly dumps of billing and crm, and test a restore of billing",
    "certificates": "Check until when the certificates of heron and owl are valid",
}

PAYLOAD = re.compile(
    r"\AWorker (?P<worker>\S+) \((?P<kind>\S+)\) ended: (?P<status>\w+)\nIts own words: (?P<words>.*)\n"
)
# The tag at the end of a frame's lines is made from what is in it, so that an output cannot pass for a line of ours.
FRAME = re.compile(r"^--- Evidence for Worker .* --- (#\w+)\n.*?^--- End Evidence --- \1$", re.MULTILINE | re.DOTALL)
SECTION = (
    r"^(?P<failed>\[FAILED\] )?(?P<file>tool_calls/(?P<number>\d+)_(?P<tool>\S+)\.txt) \((?P<facts>[^)]*)\).*: {tag}$"
)
CAUSE = re.compile(r".*(?:error|timeout|no such).*", re.IGNORECASE)


def supervise(messages: list[BaseMessage]) -> AIMessage:
    """First sends out the workers of the plan, and when they are back says whose claims hold."""
    returned = [message.text for message in messages if isinstance(message, ToolMessage)]
    if not returned:
        return calls(*(("spawn_worker", {"task": task, "task_type": kind}) for kind, task in PLAN.items()))
    return AIMessage("\n".join(judge(text) for text in returned))


def judge(text: str) -> str:
    """A line on one worker: what it says of itself, held against the evidence if there is any."""
    payload = PAYLOAD.match(text)
    if payload is None:
        return f"- Not a worker's answer: {text}"
    who = f"- {payload['worker']} ({payload['kind']})"
    words = f'"{payload["words"]}"' if payload["words"] else "nothing"
    said = f"it ended with {payload['status']} and says {words}"
    frame = FRAME.search(text)
    if frame is None:
        return f"{who}: taken at its word, no evidence was seen: {said}"
    failures = never_made_good(frame[0], frame[1])
    if failures:
        return f"{who}: ITS CLAIM DOES NOT HOLD: {said}, but {'; '.join(failures)}"
    return f"{who}: holds, no failure was left behind: {said}"


def never_made_good(evidence: str, tag: str) -> list[str]:
    """Failed calls after which no other call of the same tool went well, each with its file and cause."""
    sections = list(re.finditer(SECTION.format(tag=re.escape(tag)), evidence, re.MULTILINE))
    went_well = {(s["tool"], int(s["number"])) for s in sections if not s["failed"]}
    found = []
    for section in sections:
        if section["failed"] and not any(t == section["tool"] and n > int(section["number"]) for t, n in went_well):
            cause = CAUSE.search(evidence, section.end())  # the first line behind the heading that tells of one
            found.append(f"{section['file']} failed ({section['facts']})" + (f": {cause[0].strip()}" if cause else ""))
    return found
