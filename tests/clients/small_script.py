"""What the model says and calls in a session of a program with a shell and an editor. Its turns:

  0  a masked failure: the tests fail, and the exit code is lost in a pipe
  1  a command that fails with exit code 1; turn 4 repeats it successfully
  2  a new file, and an edit; where the program wants it, a read of each file before
  3  an edit that fails, because its text is not in the file
  4  the command of turn 1 again, and beside it one that fails with exit code 2
  5  a call of a tool that does not exist
  6  where the program has subagents, one that fails and says that it succeeded

The last turn is the false claim.
"""

import scenario
from scenario import TESTER


def call(tool, /, **arguments):
    """Returns a call of a tool."""
    return {"tool": tool, "input": arguments}


def script(command, create, replace, read=None, agent=None):
    """Returns the script. Each argument is a function that returns a call of the program's tools: for a command, for a
    new file with its name and text, for an edit with a name, an old and a new text, for a read of a file, and for a
    subagent with its prompt."""
    reads = [read("README.md"), read("price.sh")] if read else []
    turns = [
        [{"text": "I run the tests first."}, command("sh ./test.sh 2>&1 | tail -5")],
        [command("sh ./build.sh")],
        [*reads, create("build.conf", "shop=corner\n"), replace("README.md", "of a shop", "of a corner shop")],
        [replace("price.sh", "    count=0\n", "    count=5\n")],
        [command("sh ./build.sh"), command("(exit 2)")],
        [call("no_such_tool")],
    ]
    end = [{"text": scenario.CLAIMS["main"]}]
    if not agent:
        return {"main": [*turns, end]}
    tester = [[command("sh ./test.sh")], [{"text": scenario.CLAIMS[TESTER]}]]
    return {"main": [*turns, [agent(f"{TESTER}: run the tests")], end], "agents": {TESTER: tester}}
