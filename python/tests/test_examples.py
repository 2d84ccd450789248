"""The examples, run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


def test_the_plain_loop_finds_the_false_claim(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "loop.py"), str(tmp_path / "swarm")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Count the lines: it says 'There are two lines.'; its record shows ok" in printed
    assert "Test a restore: it says 'The restore test passed.'; its record shows failed" in printed
    assert "its status says success, but its last call failed" in printed
    assert "[FAILED] tool_calls/001_shell.txt" in printed


def test_the_supervisor_of_the_agents_sdk_sees_the_evidence(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "agents_sdk.py"), str(tmp_path / "swarm")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "[FAILED] tool_calls/001_check_dump.txt" in printed
    assert "checksum mismatch in block 17" in printed
    assert printed.endswith("The worker's claim does not hold.\n")
    [thread] = (tmp_path / "swarm").glob("workers/*/thread.jsonl")
    assert '"content":"The dump of billing is fine."' in thread.read_text().replace(": ", ":")
