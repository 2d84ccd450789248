"""Dictionaries as `repr()` prints them, whole and broken, with the outcome of their values: a line of JSON each."""

import ast
import json
import math
import random
import sys
import warnings

warnings.simplefilter("ignore")
rng = random.Random(int(sys.argv[1]))
KEYS = ["ok", "ok", "exit_code", "exit_code", "status_code", "data", "data", "a", "OK"]
OTHER_KEYS = [b"ok", 1, -1.5, None, (), ("ok",), (1, ("it's", None))]
CODES = [0, 1, -1, 137, 200, 404, 500, 2.5, 1e16, -0.0, 1e-7, 10**25, float("inf"), float("nan")]
TEXTS = ["", "it's", 'say "x"', "it's \"x\"", "é漢\n\t\\", "\x00\x7f\u2028\ud83d😀", "{'a': [(", b"", b"\xff'\\n"]
BREAKS = ["'", '"', "'''", "\\", "{", "}", "[", "]", "(", ")", ",", ":", "#", "\n", "\r", "\t", "-", "+", "1", "0", "_",
          ".", "e", "j", "x", "b", "r", "f", "u", "None", "True", "set()", "...", "*", " ", "\x0c", "\0", "é", "漢"]


def scalar():
    return rng.choice(rng.choice([[None, True, True, False], CODES, TEXTS]))


def value(depth):
    kind = rng.randrange(10) if depth else 9
    if kind == 0:
        return [value(depth - 1) for _ in range(rng.randrange(4))]
    if kind == 1:
        return tuple(value(depth - 1) for _ in range(rng.randrange(4)))
    if kind == 2:
        return {scalar() for _ in range(rng.randrange(4))}
    return dictionary(depth - 1) if kind < 6 else scalar()


def dictionary(depth):
    keys = [rng.choice(KEYS if rng.random() < 0.9 else OTHER_KEYS) for _ in range(rng.randrange(5))]
    plain = {"ok": [True, True, False], "exit_code": [0, 0, 1], "status_code": [200, 500]}
    return {key: rng.choice(plain[key]) if key in plain and rng.random() < 0.7 else value(depth) for key in keys}


def broken(text):
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.randrange(6))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at]
        elif kind == 1:
            text = text[:at] + text[to:]
        elif kind == 2:
            text = text[:at] + rng.choice(BREAKS) + text[at:]
        else:
            text = text[:to] + text[at:to] * rng.randrange(1, 4) + text[to:]
    return text.strip(" \t\n\x0c\r")


def whole(number):
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) < 9e15:
        return None
    return math.ceil(number) if number > 0 else math.floor(number)


def judge(found):
    data = found.get("data")
    data = data if isinstance(data, dict) else {}

    def first(name):
        inner = whole(data.get(name))
        return whole(found.get(name)) if inner is None else inner

    exit_code, status = first("exit_code"), first("status_code")
    odd = any(code is not None and whole(code) is None for code in (data.get("exit_code"), found.get("exit_code")))
    if "ok" in found and not found["ok"] or exit_code not in (None, 0) or status is not None and (status == 0 or status >= 400):
        return "failed", exit_code
    if odd:
        return "unknown", exit_code
    return ("ok" if found.get("ok") is True or exit_code == 0 else "unknown"), exit_code


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


for _ in range(int(sys.argv[2])):
    found = dictionary(4)
    printed = repr(found)
    text = printed if rng.random() < 0.5 else broken(printed)
    # What is no object, or JSON, is judged by other rules.
    if not text.startswith("{") or is_json(text):
        continue
    if text != printed:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            found = None
        # CPython refuses these.
        if found is None and ("inf" in text or "nan" in text):
            continue
    outcome, exit_code = judge(found) if isinstance(found, dict) else ("unknown", None)
    print(json.dumps({"text": text, "outcome": outcome, "exit_code": exit_code, "printed": text == printed}))
