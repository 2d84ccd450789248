"""Opens, reads and closes each file of a list with several processes. Prints seconds and bytes as JSON.

Usage: python3 reader.py READERS LIST, where LIST holds NUL-terminated paths. The time excludes starting Python.
"""
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

READERS = int(sys.argv[1])
PATHS = [os.fsdecode(path) for path in Path(sys.argv[2]).read_bytes().split(b"\0") if path]
BUFFER = [bytearray(1 << 17)]  # the chunk size of cat


def read(number):
    """Reads every n-th file, each with one call. Returns the bytes."""
    total = 0
    for path in PATHS[number::READERS]:
        descriptor = os.open(path, os.O_RDONLY)
        total += os.readv(descriptor, BUFFER)
        os.close(descriptor)
    return total


with multiprocessing.get_context("fork").Pool(READERS) as pool:
    pool.map(abs, range(READERS), chunksize=1)
    BEGAN = time.perf_counter()
    TOTAL = sum(pool.map(read, range(READERS), chunksize=1))
    print(json.dumps({"seconds": time.perf_counter() - BEGAN, "bytes": TOTAL}))
