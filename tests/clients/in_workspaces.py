#!/usr/bin/env python3
"""Runs two sessions of a real agent program at once on one repository, each in its own view, and checks the changes.

usage: in_workspaces.py SWARMLETFS claude|codex PROGRAM DIR
  SWARMLETFS  the program whose `run` makes the views
  PROGRAM     Claude Code or Codex CLI
  DIR         a new directory: project/ is the repository, store/ has the workers `one` and `two`

Both sessions edit price.sh and add a file by tools of the program, run the tests, and commit. The home directories are
the sessions' own, and only what `--preset` names can be written there.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import claude_code
import codex
import messages_api
import responses_api
import scenario
import session
from model import ScriptedModel

# How each worker makes the total right. The second one is wrong, which its tests show.
FIXES = {"one": "sum=5", "two": "sum=6"}
RESULTS = {"one": "2 tests, 0 failed", "two": "2 tests, 1 failed"}
CLAIM = "All tests pass."
COMMIT = "git -c user.name=Agent -c user.email=agent@example.org commit --quiet --all --message 'Correct the total'"


def claude_script(worker, project):
    """Returns the turns of Claude Code."""
    edit = {"file_path": f"{project}/price.sh", "old_string": "sum=0", "new_string": FIXES[worker]}
    write = {"file_path": f"{project}/{worker}.md", "content": f"By {worker}.\n"}
    return [
        [{"tool": "Read", "input": {"file_path": f"{project}/price.sh"}}],
        [{"tool": "Edit", "input": edit}, {"tool": "Write", "input": write}],
        [scenario.bash("sh ./test.sh 2>&1 | tail -1", "Run the tests")],
        [scenario.bash(COMMIT, "Commit")],
        [{"text": CLAIM}],
    ]


def codex_script(worker, _):
    """Returns the turns of Codex CLI."""
    hunks = ["*** Update File: price.sh", "@@", "-    sum=0", f"+    {FIXES[worker]}",
             f"*** Add File: {worker}.md", f"+By {worker}."]
    return [
        [codex.patch(*hunks)],
        [codex.command("sh ./test.sh 2>&1 | tail -1")],
        [codex.command(COMMIT)],
        [{"text": CLAIM}],
    ]


def claude_environment(out, url):
    """Returns the variables of a session of Claude Code, and writes its settings."""
    settings = {"permissions": {**scenario.PERMISSIONS, "allow": ["Bash", "Edit", "Write"]}}
    (out / "home/.claude").mkdir()
    (out / "home/.claude/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    variables = claude_code.environment(out, url) | {"IS_SANDBOX": "1"}
    # Its default, as most people have it.
    del variables["CLAUDE_CONFIG_DIR"]
    return variables


PROGRAMS = {
    "claude": (messages_api, claude_script, claude_environment, ["--print", scenario.PROMPT]),
    "codex": (responses_api, codex_script, codex.environment,
              ["exec", "--dangerously-bypass-approvals-and-sandbox", scenario.PROMPT]),
}


def tree(folder):
    """Returns the content of every file of a directory, without those of git."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check(swarmletfs, worker, project, store):
    """Checks what a worker changed, and that its record tells it."""
    changes = json.loads((store / "workers" / worker / "changes.json").read_text(encoding="utf-8"))
    kinds = {file["path"]: file["kind"] for file in changes["files"]}
    assert kinds == {"price.sh": "modified", f"{worker}.md": "added"}, f"the changes of {worker}: {kinds}"
    diff = subprocess.run([swarmletfs, "cat", "--store", store, f"workers/{worker}/changes.diff"], check=True,
                          capture_output=True, text=True).stdout
    for line in ("-    sum=0", f"+    {FIXES[worker]}", f"+By {worker}."):
        assert f"\n{line}\n" in diff, f"{line!r} is missing in {diff}"
    subprocess.run(["git", "apply", "--check"], input=diff, cwd=project, text=True, check=True)
    log = (store / "workers" / worker / "logs/execution.log").read_text(encoding="utf-8", errors="replace")
    assert CLAIM in log, f"the final words are missing in {log}"
    metadata = json.loads((store / "workers" / worker / "metadata.json").read_text(encoding="utf-8"))
    assert metadata["status"] == "completed", f"the end of {worker}: {metadata}"


def main():
    swarmletfs, name, program, out = sys.argv[1:]
    swarmletfs, out = str(Path(swarmletfs).resolve()), Path(out).resolve()
    api, script, environment, words = PROGRAMS[name]
    project, store = out / "project", out / "store"
    project.mkdir(parents=True)
    session.make_project(project, session.environment(out))
    subprocess.run([swarmletfs, "init", store], check=True, stdout=subprocess.DEVNULL)
    before = tree(project)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True).stdout

    with ExitStack() as models:
        started = {}
        for worker in FIXES:
            home = out / worker
            session.make_directories(home)
            turns = {"main": script(worker, project)}
            model = models.enter_context(ScriptedModel(api, turns, home / "requests.jsonl"))
            run = [swarmletfs, "run", "--store", store, "--workspace", project, "--id", worker, "--preset", name,
                   "--write", home / "tmp", "--env", "SCRIPTED_KEY=none", "--", program, *words]
            started[worker] = subprocess.Popen(
                run, cwd=project, env=environment(home, model.url), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
        for worker, process in started.items():
            said, _ = process.communicate(timeout=session.LIMIT)
            assert process.returncode == 0, f"{worker} ended with {process.returncode}: {said}"

    for worker in FIXES:
        asked = (out / worker / "requests.jsonl").read_text(encoding="utf-8")
        assert RESULTS[worker] in asked, f"the model of {worker} saw its own tests"
        check(swarmletfs, worker, project, store)
    assert tree(project) == before, "the project has not changed"
    after = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True).stdout
    assert after == head, "nobody committed to the project"
    # The first is applied; the second changed the same line.
    subprocess.run([swarmletfs, "apply", "--store", store, "--yes", "one"], check=True, stdout=subprocess.DEVNULL)
    assert (project / "one.md").exists() and "sum=5" in (project / "price.sh").read_text(encoding="utf-8")
    second = subprocess.run([swarmletfs, "apply", "--store", store, "--yes", "two"], check=False, capture_output=True)
    assert second.returncode == 1 and not (project / "two.md").exists(), f"a conflict: {second}"
    subprocess.run([swarmletfs, "undo", "--store", store, "--yes", "one"], check=True, stdout=subprocess.DEVNULL)
    assert tree(project) == before, "undo gives the project back"
    # The commit of the program comes out whole, and the file that it did not commit beside it.
    decide = [swarmletfs, "apply", "--store", store, "--yes", "--commits", "one"]
    subprocess.run(decide, check=True, stdout=subprocess.DEVNULL)
    show = "git log -1 --format='%an: %s'; git status --short"
    shown = subprocess.run(show, shell=True, cwd=project, check=True, capture_output=True, text=True).stdout
    assert shown == "Agent: Correct the total\n?? one.md\n", f"the commit of one: {shown}"
    print(f"{name}: two sessions at once on one repository, each in its own view")


if __name__ == "__main__":
    os.umask(0o022)
    main()
