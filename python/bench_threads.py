"""Compares reading by 8 threads with reading by one, in one run: python bench_threads.py [STORE]

It reads whole outputs, and excerpts of a size that was not asked for before, so no cache has them. Without
STORE, it makes a store of 50 workers in a temporary folder.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import swarmletfs

THREADS = 8
ROUNDS = 6
WORKERS = 50


def fill(store: str) -> None:
    """Records workers with long outputs, of which every third fails."""
    swarmletfs.init(store)
    for number in range(WORKERS):
        worker = swarmletfs.Worker.create(store, task=f"Task {number}", sync=False)
        output = "".join(f"line {line} of {number}: step took {line * 7 % 100} ms\n" for line in range(3000))
        for call in range(3):
            worker.record("sh", output, exit_code=int(number % 3 == call))
        worker.finish()


def main(store: str) -> None:
    """Prints the seconds of each way, and their ratio, for whole files and for excerpts."""
    view = swarmletfs.open(store)
    workers = view.workers(limit=WORKERS)
    sizes = itertools.count(4_000)

    def read_file(worker: swarmletfs.RecordedWorker) -> None:
        for _ in range(20):
            worker.tool_output(1)

    def read_evidence(worker: swarmletfs.RecordedWorker) -> None:
        worker.evidence(budget=next(sizes))

    for name, read in [("outputs", read_file), ("evidence", read_evidence)]:
        seconds: dict[int, list[float]] = {1: [], THREADS: []}
        for _ in range(ROUNDS):
            for threads, measured in seconds.items():
                begin = time.perf_counter()
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(read, workers))
                measured.append(time.perf_counter() - begin)
        # Whatever else runs only makes a round longer.
        one, several = (min(measured) for measured in seconds.values())
        print(f"{name}: 1 thread {one:.2f} s, {THREADS} threads {several:.2f} s, {one / several:.2f} times as fast")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            fill(f"{folder}/swarm")
            main(f"{folder}/swarm")
