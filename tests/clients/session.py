"""Runs an agent program in a small project against a scripted model. What its session leaves is in one directory:

  project/        the git repository it worked in
  home/           its home directory
  requests.jsonl  what the model was asked
  held            is there while the session waits before a turn, and holds the number of the turn
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import scenario
from model import HOLD_MAX, ScriptedModel

# How long a session may take without being held, in seconds.
LIMIT = 120
# Nobody listens here: a program that wants another network than loopback fails at once.
NOBODY = "http://127.0.0.1:9"


def lines(path):
    """Returns the JSON objects of a file, one a line."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def options(usage):
    """Returns the arguments of a program that runs a session: its own documentation tells them."""
    parser = argparse.ArgumentParser(usage=usage.split("usage: ", 1)[1])
    parser.add_argument("--hold", type=int, action="append", default=[])
    parser.add_argument("program", type=lambda path: Path(path).absolute())
    parser.add_argument("out", type=lambda path: Path(path).resolve())
    parser.add_argument("hook", nargs=argparse.REMAINDER)
    return parser.parse_args()


def make_directories(out, *more):
    """Creates the directories of a session."""
    for name in ("project", "home", "tmp", *more):
        (out / name).mkdir(parents=True)


def environment(out):
    """Returns the variables of a session: nothing of the caller's but PATH, and no network but the model."""
    return {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TZ": "UTC",
        "HOME": str(out / "home"),
        "TMPDIR": str(out / "tmp"),
        "HTTP_PROXY": NOBODY,
        "HTTPS_PROXY": NOBODY,
        "NO_PROXY": "127.0.0.1",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def make_project(project, env):
    """Creates the git repository that the session works in."""
    for name, text in scenario.FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    author = {"NAME": "Test", "EMAIL": "test@example.org", "DATE": "2026-01-20T00:00:00Z"}
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in author.items()}
    for command in ("git init --quiet --initial-branch=main", "git add .", "git commit --quiet --message start"):
        subprocess.run(command.split(), cwd=project, env=env | who, check=True)


def run(command, out, api, script, holds, variables):
    """Runs the command, whose model plays the script, and returns what it printed.

    `variables` returns the variables of the program for the directory and for the model's URL."""
    with ScriptedModel(api, script, out / "requests.jsonl", holds, out / "held") as model:
        env = variables(out, model.url)
        make_project(out / "project", env)
        done = subprocess.run(
            command, cwd=out / "project", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=LIMIT + HOLD_MAX * len(holds),
        )
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def check_requests(out, script):
    """Checks that each conversation was played to its end, and no further."""
    asked = [(request["conversation"], request["turn"]) for request in lines(out / "requests.jsonl")]
    for name, turns in (("main", script["main"]), *script.get("agents", {}).items()):
        played = [turn for conversation, turn in asked if conversation == name]
        assert played == list(range(len(turns))), f"the turns of {name}: {played}, expected {len(turns)}"
