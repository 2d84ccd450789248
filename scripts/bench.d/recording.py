"""Records workers through the library and the command line, and a large output beside tee.

A round measures every way once, in a new random order.
"""
import os
import random
import shlex
import shutil
import time
from statistics import median

import table
from place import Wrong
from rounds import rounds_of

TITLE = "Recording"
ROUNDS = 5
MIB = 1 << 20
# One worker in a shell, as a user would record it.
CYCLE = """\
for i in $(seq {workers}); do
    id=$({program} worker create {options} --task 'Check a backup')
    {program} worker record $id {options} --tool restore --input backup.dump --exit 0 < {output}
    echo 'The backup is fine.' | {program} worker finish $id {options} --result -
done"""
LIBRARY, COMMANDS = "the library", "the command line, three processes"
NOTE = """\
Milliseconds for one worker, which is created, records a call with an output of {bytes:,} bytes, and finishes; the
median (smallest-largest) of the rounds of {workers} workers each, one after the other. Every change is also in the log
of changes. For comparison, it takes {start} ms to start the program (`swarmletfs --version`), and {file} ms
to write one file of that size durably: write, fsync, rename, fsync of the directory.
"""
TEE = "`tee`"
LARGE_NOTE = """\
`cat` of a file of {large:,} MiB that is in memory, as `cat FILE | tee COPY` and as `record -- cat FILE`, with stdout
to /dev/null. Seconds, and multiples of the time of tee in the same round; the median (smallest-largest) of the rounds.
Before each command, all that was written before is flushed to the disk. tee does not wait for the disk; `sync COPY`
after it does, and so does `record` without `--no-sync`. If stderr goes to the same place as stdout, the command writes
both to one pipe; otherwise each has a pipe of its own.
"""


def options(parser, count, _):
    parser.add_argument("--workers", type=count, default=50, help="of a round")
    parser.add_argument("--bytes", type=count, default=4096, help="of a worker's output")
    parser.add_argument("--large", type=count, default=1024, help="of the output beside tee, in MiB")


def programs(_):
    return [("cat", "coreutils"), ("tee", "coreutils"), ("bash", "bash")]


def by_library(place, asked, extra):
    """Returns the seconds for a worker through the library."""
    store = place.new("store")
    size = ["--workers", asked.workers, "--bytes", asked.bytes]
    took = float(place.ask([place.load, "record", *size, *extra, store]))
    shutil.rmtree(store)
    return took / asked.workers


def by_commands(place, asked, extra):
    """Returns the seconds for a worker through the command line."""
    store = place.new("store")
    place.run([place.program, "init", store])
    output = place.new("output")
    output.write_bytes(b"x" * asked.bytes)
    given = shlex.join(["--store", str(store), *extra])
    script = CYCLE.format(program=shlex.quote(str(place.program)), options=given, workers=asked.workers, output=output)
    took = place.run(["bash", "-ec", script])
    made = len(os.listdir(store / "workers"))
    if made != asked.workers:
        raise Wrong(f"{made} workers were recorded instead of {asked.workers}")
    shutil.rmtree(store)
    return took / asked.workers


def durable_file(place, size):
    """Returns the seconds to write a file so that it survives a power failure."""
    path, temporary = place.new("file"), place.new("temporary")
    content = b"x" * size
    began = time.perf_counter()
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    took = time.perf_counter() - began
    os.close(folder)
    path.unlink()
    return took


def workers(place, asked):
    ways = {
        (name, extra): lambda record=record, extra=extra: record(place, asked, extra)
        for name, record in ((LIBRARY, by_library), (COMMANDS, by_commands))
        for extra in ((), ("--no-sync",))
    }
    figures = rounds_of(ways, asked.rounds)
    start = table.ms([place.run([place.program, "--version"]) for _ in range(20)])
    file = table.ms([durable_file(place, asked.bytes) for _ in range(20)])
    print(NOTE.format(bytes=asked.bytes, workers=asked.workers, start=start, file=file))
    rows = [[name, table.ms(figures[name, ()]), table.ms(figures[name, ("--no-sync",)])]
            for name in (LIBRARY, COMMANDS)]
    print(table.markdown(["", "with fsync, ms", "`--no-sync`, ms"], rows) + "\n", flush=True)


def large(place, asked):
    source, copy, store = place.new("large"), place.new("copy"), place.new("store")
    block = random.randbytes(MIB)
    with open(source, "wb") as file:
        for _ in range(asked.large):
            file.write(block)
    place.run([place.program, "init", store])
    worker = place.ask([place.program, "worker", "create", "--quiet", "--store", store]).decode().strip()
    calls = store / "workers" / worker / "tool_calls"
    record = shlex.join([str(place.program), "record", "--quiet", "--store", str(store), "--worker", worker])
    cat = shlex.join(["cat", str(source)])

    def timed(command):
        os.sync()
        place.run(["cat", source])
        took = place.run(["bash", "-ec", command])
        for made in (copy, *calls.iterdir()):
            if made.exists():
                if made.stat().st_size != asked.large * MIB:
                    raise Wrong(f"{command}: {made} has {made.stat().st_size} bytes")
                made.unlink()
        return took

    commands = {
        TEE: f"{cat} | tee {copy} > /dev/null",
        "`tee`, then `sync`": f"{cat} | tee {copy} > /dev/null; sync {copy}",
        "`record --no-sync`": f"{record} --no-sync -- {cat} > /dev/null",
        "`record --no-sync`, stderr to stdout": f"{record} --no-sync -- {cat} > /dev/null 2>&1",
        "`record`": f"{record} -- {cat} > /dev/null",
    }
    figures = rounds_of({name: lambda text=text: timed(text) for name, text in commands.items()}, asked.rounds)
    print(f"### {asked.large:,} MiB of output\n\n{LARGE_NOTE.format(large=asked.large)}")
    rows = []
    for name, took in figures.items():
        ratios = [one / tee for one, tee in zip(took, figures[TEE])]
        rows.append([name, table.spread(took), f"{asked.large / median(took):,.0f}", table.spread(ratios)])
    print(table.markdown(["", "seconds", "MiB per second", "times tee"], rows) + "\n", flush=True)


def measure(place, asked):
    workers(place, asked)
    large(place, asked)
