"""Random Python literals, whole and broken, with the outcome that CPython's own reader leads to: a line of JSON each."""

import ast
import json
import math
import random
import sys
import warnings

warnings.simplefilter("ignore")
rng = random.Random(int(sys.argv[1]))
KEYS = ["ok", "ok", "exit_code", "exit_code", "status_code", "data", "data", "a", "OK", "error"]
BREAKS = ["'", '"', "'''", "\\", "{", "}", "[", "]", "(", ")", ",", ":", "#", "\n", "\r", "\t", "-", "+", "1", "0", "_",
          ".", "e", "j", "x", "b", "r", "f", "u", "None", "True", "set()", "...", "*", " ", "\x0c", "\0", "é", "漢"]


def space():
    if rng.random() < 0.8:
        return ""
    return rng.choice([" ", "  ", "\n", "\r\n", "\t", "\x0c", "# it's {[(\n", "\\\n", "\r"])


def text(words, prefixes):
    quote = rng.choice(["'", '"', "'''", '"""'])
    prefix = rng.choice(prefixes)
    body = "".join(rng.choice(words) for _ in range(rng.randrange(4)))
    is_raw, is_bytes = "r" in prefix.lower(), "b" in prefix.lower()
    if is_bytes:
        body = body.encode("ascii", "ignore").decode()
    if not is_raw:
        body += rng.choice(["", "", "\\n", "\\x41", "\\'", '\\"', "\\\\", "\\u00e9", "\\U0001f600", "\\101", "\\777",
                            "\\d", "\\\n", "\\ud83d", "\\8"])
        body += rng.choice(["\\x4", "\\u12", "\\N{"]) if rng.random() < 0.02 else ""
    return prefix + quote + body + quote


def string():
    words = ["a", "it's", "é", " ", "{", "]", "漢", "%s", "\n", "\\"] if rng.random() < 0.1 else ["a", "b c", "é", "[x]", ","]
    prefixes = rng.choice([["", "r", "u", "R"], ["", "", "U"], ["b", "Rb", "bR", "B"]])
    prefixes = prefixes + ["b", ""] if rng.random() < 0.05 else prefixes
    return space().join(text(words, prefixes) for _ in range(rng.choice([1, 1, 1, 1, 2, 3])))


def digits(n=4):
    return rng.choice("123456789") + "".join(rng.choice(["", "", "", "_"]) + rng.choice("0123456789") for _ in range(rng.randrange(n)))


def number():
    kind = rng.randrange(9) if rng.random() < 0.1 else rng.randrange(7)
    if kind < 4:
        return rng.choice(["0", "1", "2", "-1", "137", "200", "404", "500", "00", "0_0", "+1", "- 1"])
    if kind == 4:
        return digits(30)
    if kind == 5:
        return rng.choice(["0x", "0X_", "0o", "0b"]) + rng.choice(["0", "1", "01", "1_0", "7", "ff", "10" * 20])
    if kind == 6:
        return rng.choice(["0.5", "1.", ".5", "1e3", "1_0.0_1e-1_0", "1e999", "-1e-999", "012.5", "0e0"])
    if kind == 7:
        return rng.choice(["1j", "0j", "-2.5J", "012j", "1+2j", "-1-0j", "0+0j", "(1+2j)", "(-1)+(2j)", "1 + -2j", "1j+1j"])
    if kind == 8:
        return rng.choice(["--1", "+-1", "-True", "-(1)", "-(-1)", "(0)", "((2))", "01", "1_", "1__0", "1+1", "- 'a'"])
    return digits()


def atom():
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(["None", "True", "True", "False"])
    if kind < 6:
        return number()
    if kind == 6 and rng.random() < 0.1:
        return rng.choice(["f'a'", "x", "open('x')", "<object at 0x1>", "*[]"])
    if kind == 6:
        return rng.choice(["...", "set()", "set( )", "()", "[]", "{}"])
    return string()


def join(items, open, close):
    parts = [space() + item + space() for item in items]
    end = "," + space() if parts and rng.random() < 0.2 else ""
    return open + ",".join(parts) + end + close


def value(depth):
    kind = rng.randrange(8) if depth > 0 else 7
    items = [value(depth - 1) for _ in range(rng.randrange(4))] if kind < 4 else []
    if kind == 0:
        return join(items, "[", "]")
    if kind == 1:
        return join(items, "(", ")")
    if kind == 2:
        return join([atom() for _ in range(1 + rng.randrange(3))], "{", "}")
    if kind < 6:
        return dictionary(depth - 1)
    if kind == 6:
        return "(" + space() + value(depth - 1) + space() + ")"
    return atom()


def key():
    if rng.random() < 0.1:
        return atom()
    word = rng.choice(KEYS)
    kind = rng.randrange(12)
    if kind == 0:
        return f"'{word[:1]}'{space()}'{word[1:]}'"
    if kind == 1:
        return "'" + "".join(f"\\x{ord(c):02x}" for c in word) + "'"
    if kind == 2:
        return f"({space()}'{word}')"
    if kind == 3:
        return f"b'{word}'"
    return rng.choice(["'{}'", '"{}"', "'''{}'''", "r'{}'"]).format(word)


def dictionary(depth):
    pairs = [f"{key()}{space()}:{space()}{value(depth)}" for _ in range(rng.randrange(5))]
    return join(pairs, "{", "}")


def random_value(depth):
    kind = rng.randrange(12) if depth else rng.randrange(8)
    simple = [None, True, False, 0, 1, -1, 2.5, "it's", 'say "x"', b"\xff'", 10**25, 1j, float("inf"), ""]
    if kind < 8:
        return rng.choice(simple)
    if kind == 8:
        return [random_value(depth - 1) for _ in range(rng.randrange(4))]
    if kind == 9:
        return tuple(random_value(depth - 1) for _ in range(rng.randrange(3)))
    return {rng.choice(KEYS): random_value(depth - 1) for _ in range(rng.randrange(5))}


def source():
    kind = rng.randrange(10)
    if kind < 2:
        return repr({rng.choice(KEYS): random_value(3) for _ in range(1 + rng.randrange(4))})
    if kind == 2:
        n = rng.choice([1, 20, 100, 150, 190, 197, 198, 199, 200, 250])
        open, close = rng.choice([("[", "]"), ("(", ",)"), ("(", ")"), ("{'a':", "}")])
        return "{'ok': False, 'a': " + open * n + "1" + close * n + "}"
    return dictionary(3) + rng.choice([""] * 20 + [" # end", "\n\n", " x", ", 1", "[0]", "{}", "\\\n"])


def broken(text):
    for _ in range(rng.choice([0, 0, 0, 0, 1, 2])):
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
    return text


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
    written = broken(source()).strip(" \t\n\x0c\r")
    # What is no object, or JSON, is judged by other rules.
    if not written.startswith("{") or is_json(written):
        continue
    try:
        found, accepted = ast.literal_eval(written), True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found, accepted = None, False
    # `repr` writes these, and they are read here, though CPython refuses them.
    if not accepted and ("inf" in written or "nan" in written):
        continue
    outcome, exit_code = judge(found) if isinstance(found, dict) else ("unknown", None)
    print(json.dumps({"text": written, "outcome": outcome, "exit_code": exit_code, "accepted": isinstance(found, dict)}))
