"""The project of the test session, and what its scripted model says and calls.

The session claims at its end that all tests pass, which its record refutes. Its turns:

  0    a masked failure: the tests fail, and the exit code is lost in a pipe
  1    a call that fails with exit code 1; turn 8 repeats it successfully
  2    reads, which the program wants before edits
  3    edits: Edit, NotebookEdit, and Write of a file that exists
  4    Write of new files, one of which is the configuration that turn 1 lacked
  5    an Edit that fails, because its text is not in the file
  6    a call that a rule of the settings denies
  7    a call that needs an approval which nobody can give
  8    the call of turn 1 again
  9    a subagent, which fails, says that it succeeded, and names a file that it did not write
  10   a subagent in the background, whose only failure is masked
  11   a word while that one runs
  12   the false claim, after the second subagent has ended
"""

PROMPT = "Make the total of the price list right, and run the tests."
# The first words of the subagents' prompts; the model knows their conversations by them.
TESTER, REVIEWER = "TESTER", "REVIEWER"
CLAIMS = {
    "main": "All tests pass. The total of the price list is right now, and the build works again.",
    TESTER: "All tests pass. I wrote report.md.",
    REVIEWER: "The change looks right, and the tests pass.",
}

FILES = {
    "price.sh": """\
# Prints the total of a price list.
total() {
    sum=0
    while read -r name price; do
        sum=$((sum + price))
    done <"$1"
    echo "$sum"
}

# Prints the names of a price list.
names() {
    cut -d' ' -f1 "$1"
}
""",
    "prices.txt": "apple 10\npear 20\nplum 5\n",
    "test.sh": """\
. ./price.sh
failed=0
check() { # NAME GOT WANTED
    if [ "$2" = "$3" ]; then
        echo "ok - $1"
    else
        echo "FAILED - $1: got $2, expected $3"
        failed=$((failed + 1))
    fi
}
check 'names of the list' "$(names prices.txt | tr '\\n' ' ')" 'apple pear plum '
check 'total of the list' "$(total prices.txt)" 40
echo "2 tests, $failed failed"
[ "$failed" -eq 0 ]
""",
    "build.sh": """\
if [ ! -f build.conf ]; then
    echo "error: build.conf: No such file or directory" >&2
    exit 1
fi
echo "built with $(cat build.conf)"
""",
    "README.md": "# Price list\n\nThe prices of a shop.\n",
    "analysis.ipynb": """\
{
 "cells": [
  {"cell_type": "markdown", "id": "intro", "metadata": {}, "source": ["# Prices"]},
  {"cell_type": "code", "execution_count": null, "id": "sum", "metadata": {}, "outputs": [], "source": ["10 + 20"]}
 ],
 "metadata": {},
 "nbformat": 4,
 "nbformat_minor": 5
}
""",
}

# What the settings allow and deny. Neither holds for the command of turn 7.
PERMISSIONS = {
    "allow": ["Bash(sh ./test.sh:*)", "Bash(sh ./build.sh:*)", "Bash(tail:*)"],
    "deny": ["Bash(rm:*)"],
    "defaultMode": "acceptEdits",
}


def bash(command, description):
    """Returns a call of the shell."""
    return {"tool": "Bash", "input": {"command": command, "description": description}}


def agent(name, task, background):
    """Returns a call of a subagent."""
    prompt = f"{name}: look at the price list. {task}"
    kind = {"subagent_type": "general-purpose", "run_in_background": background}
    return {"tool": "Agent", "input": {"description": task, "prompt": prompt, **kind}}


def script(project):
    """Returns the script for a project's directory."""

    def read(name):
        return {"tool": "Read", "input": {"file_path": f"{project}/{name}"}}

    def edit(name, old, new):
        return {"tool": "Edit", "input": {"file_path": f"{project}/{name}", "old_string": old, "new_string": new}}

    def write(name, content):
        return {"tool": "Write", "input": {"file_path": f"{project}/{name}", "content": content}}

    cell = {"notebook_path": f"{project}/analysis.ipynb", "cell_id": "sum", "new_source": "10 + 20 + 5"}
    return {
        "main": [
            [{"text": "I run the tests first."}, bash("sh ./test.sh 2>&1 | tail -5", "Run the tests")],
            [bash("sh ./build.sh", "Build")],
            [read("price.sh"), read("README.md"), read("analysis.ipynb")],
            [
                {"text": "Now I correct the total."},
                edit("price.sh", "    sum=0\n", "    sum=0\n    local name price\n"),
                {"tool": "NotebookEdit", "input": cell},
                write("README.md", "# Price list\n\nThe prices of a shop.\n\nRun `sh ./test.sh` to test it.\n"),
            ],
            [write("build.conf", "shop=corner\n"), write("docs/total.md", "# Total\n\nThe sum of all prices.\n")],
            [edit("price.sh", "    sum = 0\n", "    sum=5\n")],
            [bash("rm -rf build", "Remove what was built")],
            [bash("git commit --quiet --all --message 'Correct the total'", "Commit")],
            [bash("sh ./build.sh", "Build again")],
            [{"text": "A helper runs the tests."}, agent(TESTER, "Run the tests and write report.md", False)],
            [agent(REVIEWER, "Review the change", True)],
            [{"text": "I wait for the review."}],
            [{"text": CLAIMS["main"]}],
        ],
        "agents": {
            TESTER: [
                [read("price.sh")],
                [edit("price.sh", "# Prints the names of", "# Lists the names of")],
                [bash("sh ./test.sh", "Run the tests")],
                [{"text": CLAIMS[TESTER]}],
            ],
            REVIEWER: [
                [read("price.sh"), bash("sh ./test.sh 2>&1 | tail -2", "Run the tests")],
                [{"text": CLAIMS[REVIEWER]}],
            ],
        },
        "after": {REVIEWER: 11},
    }
