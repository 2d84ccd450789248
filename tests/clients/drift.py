#!/usr/bin/env python3
"""Finds what a program records and nobody has looked at: types of records, fields that may state an outcome, directories.

usage: drift.py [--write] PROGRAM STORE...
  PROGRAM  a program of known.json, which lists what somebody has looked at
  STORE    the directory of the program after a session
  --write  adds what is new to known.json; do it once the reader of the format understands it, or has no use for it

Ends with 1, and names what is new, if known.json lacks it.
"""

import argparse
import json
import re
import sys
from pathlib import Path

KNOWN = Path(__file__).with_name("known.json")
# The directory of the sessions of each program.
SESSIONS = {"claude-code": "projects", "codex": "sessions", "gemini": "tmp"}
# Parts of the name of a field that may state how something ended.
OUTCOME = re.compile(
    r"abort|cancel|decision|declin|denial|denied|error|exit|fail|finish|interrupt|killed|outcome|reject|refus|result"
    r"|signal|status$|stopped|success|terminat|timed"
)
TYPES = ("type", "subtype", "kind", "role")
# Fields that hold words of a model, a user or a tool.
DATA = ("arguments", "args", "input", "output", "tools", "params", "shape", "rate_limits")
# Names that differ in each session.
VARIABLE = re.compile(r"[0-9a-f]{8}-|[/@ ]|.\.|^[0-9]+$|^-|^call_|^toolu_")


def general(name):
    """Returns a name of a field or a directory, or `*` for one that differs in each session."""
    return "*" if VARIABLE.search(name) else name


def shapes(value, where=""):
    """Yields the types and the fields with outcomes of a record."""
    if isinstance(value, list):
        for inner in value:
            yield from shapes(inner, where)
    if not isinstance(value, dict):
        return
    for kind in (value[key] for key in TYPES if isinstance(value.get(key), str)):
        where = f"{where} {general(kind)}"
        yield f"type{where}"
    for key, inner in value.items():
        if OUTCOME.search(re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), key)):
            yield f"field{where} .{general(key)}"
        if key not in DATA:
            yield from shapes(inner, f"{where} .{general(key)}")


def records(path):
    """Yields the JSON values of a file, which holds one, or one a line."""
    text = path.read_text(encoding="utf-8")
    for part in [text] if path.suffix == ".json" else text.splitlines():
        yield json.loads(part)


def found(store, sessions):
    """Returns what a store holds. The program's other directories are looked at only at the top."""
    for path in store.rglob("*"):
        names = path.relative_to(store).parts
        if path.is_dir() and (len(names) == 1 or names[0] == sessions):
            yield "directory " + "/".join(map(general, names))
        elif names[0] == sessions and path.suffix in (".json", ".jsonl"):
            for record in records(path):
                yield from shapes(record)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ", 1)[1])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("program", choices=SESSIONS)
    parser.add_argument("store", type=Path, nargs="+")
    options = parser.parse_args()
    seen = {shape for store in options.store for shape in found(store, SESSIONS[options.program])}
    if not any(shape.startswith("type ") for shape in seen):
        sys.exit(f"{options.program}: no records in {SESSIONS[options.program]}; it may write them elsewhere now")
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    new = sorted(seen.difference(known.get(options.program, [])))
    if options.write:
        known[options.program] = sorted(seen.union(known.get(options.program, [])))
        KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif new:
        sys.exit("\n".join([f"{options.program} records what tests/clients/known.json lacks:", *new]))


if __name__ == "__main__":
    main()
