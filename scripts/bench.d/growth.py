"""Mounts larger and larger swarms, and measures how soon a change appears."""
import json
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

import table
from place import Wrong

TITLE = "Growth"
ROUNDS = 3
POLL = 0.005  # seconds between two checks for a change
LOOKED = 1.5  # longest time of checking before the change, in seconds
CHANGES = 3  # changes of each kind in a round
RUNNING_EVERY = 3  # the first of every three workers is still running
OUTCOMES_READ = re.compile(rb'"total_workers":(\d+),"active_workers":\d+,"outcomes_read":(\d+)')

COLD, WARM, LIST, INDEX, WHOLE, WARM_INDEX, OWN, BY, RSS, EACH, PEAK = MEASURES = (
    "mount, empty cache, s",
    "mount, filled cache, s",
    "first `ls workers`, s",
    "first `cat index.json`, s",
    "from mounting until index.json has every outcome, s",
    "first `cat index.json`, filled cache, s",
    "until a change appears in the worker's index.json, s",
    "until it appears in `ls by/status/completed`, s",
    "RSS after mounting, MiB",
    "per worker, above an empty store, KiB",
    "peak RSS at the end, MiB",
)
NOTE = """\
Workers of five files, including an output of about 300 bytes; a third are running. Each cell is the median
(smallest-largest) of the rounds, and each round begins with an empty cache. The store's files are in memory at every
size, so disk time is not included. A change overwrites the metadata.json of a running worker. The benchmark checks for
it every {poll} ms, from some time before the change, and the duration of a check is included. A mount of an empty store
has an RSS of {empty} MiB.
"""
DIGITS = {RSS: 1, EACH: 2, PEAK: 1}
# Plotted measures, in colors that are distinct on white.
PLOTTED = {
    COLD: "#1f4e9c",
    WARM: "#56a0e0",
    LIST: "#2a7f3f",
    INDEX: "#c05a00",
    OWN: "#8e44ad",
    BY: "#c2185b",
    RSS: "#333333",
}


def options(parser, _, counts):
    parser.add_argument("--sizes", type=counts, default=[1000, 10_000, 100_000], help="numbers of workers: 1000,10000")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw an SVG")


def programs(asked):
    return [("ls", "coreutils"), *([("gnuplot", "gnuplot-nox")] if asked.plot else [])]


def one_round(place, store, size, number, empty):
    """Takes every measure of a store once, a list each. `empty` is the memory of an empty mount, in KiB."""
    cache, figures = place.new("cache"), {}
    mount = place.swarmletfs(store, cache)
    rss, began = mount.memory("VmRSS"), time.perf_counter()
    figures[COLD], figures[RSS], figures[EACH] = [mount.seconds], [rss / 1024], [(rss - empty) / size]
    figures[LIST] = [place.run(["ls", "workers"], mount.point)]
    figures[INDEX] = [place.run(["cat", "index.json"], mount.point)]
    place.until("index.json to tell every outcome", lambda: told(place, mount.point, size), POLL)
    figures[WHOLE] = [time.perf_counter() - began]
    took = [changes(place, store, mount, CHANGES * number + change) for change in range(CHANGES)]
    figures[OWN], figures[BY] = zip(*took)
    figures[PEAK] = [mount.memory("VmHWM") / 1024]
    mount.end()
    mount = place.swarmletfs(store, cache)
    figures[WARM] = [mount.seconds]
    figures[WARM_INDEX] = [place.run(["cat", "index.json"], mount.point)]
    mount.end()
    shutil.rmtree(cache)
    return figures


def changes(place, store, mount, number):
    """Completes two workers. Returns the seconds until one's index shows it, and until the other is listed."""
    first, second = (f"worker-{RUNNING_EVERY * (2 * number + one):05}" for one in (0, 1))
    own, listed = mount.point / "workers" / first / "index.json", mount.point / "by/status/completed"
    return (change(place, store, first, lambda: json.loads(own.read_bytes())["status"] == "completed"),
            change(place, store, second, lambda: second in os.listdir(listed)))


def change(place, store, worker, shows):
    """Completes a running worker, and checks until it appears. Returns the seconds."""
    # Checking starts before the change; otherwise the first check would always rescan.
    end = time.monotonic() + random.uniform(0, LOOKED)
    place.until(f"the time to change {worker}", lambda: shows() or time.monotonic() > end, POLL)
    if shows():
        raise Wrong(f"{worker} was shown as completed before the change")
    complete(store / "workers" / worker / "metadata.json")
    began = time.perf_counter()
    place.until(f"the change of {worker} to show", shows, POLL)
    return time.perf_counter() - began


def complete(path):
    """Rewrites the record of a running worker, in place, as programs do."""
    record = json.loads(path.read_bytes())
    if record["status"] != "running":
        raise Wrong(f"{path} is not of a running worker")
    path.write_text(json.dumps(record | {"status": "completed", "finished_at": record["started_at"]}), encoding="utf-8")


def told(place, point, size):
    """Returns True if index.json has the outcome of all workers."""
    found = OUTCOMES_READ.search(place.ask(["tail", "-c", "1000", "index.json"], point))
    if not found or int(found[1]) != size:
        raise Wrong(f"index.json does not have {size} workers")
    return found[1] == found[2]


def memory_of_nothing(place):
    """Returns the memory of a mount of an empty store, in KiB."""
    store = place.new("store")
    store.mkdir()
    mount = place.swarmletfs(store)
    rss = mount.memory("VmRSS")
    mount.end()
    return rss


def measure_size(place, size, rounds, empty):
    """Runs all rounds of a size. Maps each measure to its figures."""
    store = place.make(size, 1, 300)
    if size < RUNNING_EVERY * 2 * CHANGES * rounds:
        raise Wrong(f"{size} workers are too few for {rounds} rounds of changes")
    # Reads everything once, so that it is in memory.
    place.run(["grep", "-rc", "nothing of it", "."], store, place.output, fine=(1,))
    done = [one_round(place, store, size, number, empty) for number in range(rounds)]
    shutil.rmtree(store)
    return {name: [one for figures in done for one in figures[name]] for name in MEASURES}


def measure(place, asked):
    if asked.plot and len(asked.sizes) < 2:
        raise Wrong("--plot draws lines, and a line needs two --sizes")
    empty = median(memory_of_nothing(place) for _ in range(5))
    figures = {size: measure_size(place, size, asked.rounds, empty) for size in asked.sizes}
    print(NOTE.format(poll=f"{POLL * 1000:g}", empty=f"{empty / 1024:.1f}"))
    heads = ["", *(f"{size:,} workers" for size in asked.sizes)]
    rows = [[name, *(table.spread(of[name], DIGITS.get(name, 3)) for of in figures.values())] for name in MEASURES]
    print(table.markdown(heads, rows) + "\n", flush=True)
    if asked.plot:
        plot(asked.plot, figures)


def plot(path, figures):
    """Draws the medians over the number of workers."""
    blocks, lines = [], []
    for number, (name, colour) in enumerate(PLOTTED.items()):
        points = "\n".join(f"{size} {median(of[name])}" for size, of in figures.items())
        blocks.append(f"$d{number} << END\n{points}\nEND\n")
        axes, dashes = ("x1y2", 2) if name == RSS else ("x1y1", 1)
        style = f"linespoints linecolor rgb '{colour}' linewidth 2 pointtype 7 pointsize 0.5 dashtype {dashes}"
        lines.append(f"$d{number} using 1:2 axes {axes} with {style} title {quoted(name.replace('`', ''))}")
    script = f"""{''.join(blocks)}
set terminal svg size 900,560 font 'sans-serif,13' background rgb 'white'
set output {quoted(str(path))}
set logscale xyy2
set xlabel 'workers'
set ylabel 'seconds'
set y2label 'MiB'
set ytics nomirror
set y2tics
set format x '%.0f'
set grid
set key below left Left reverse
set xrange [*:*] noextend
plot {', '.join(lines)}
"""
    done = subprocess.run(["gnuplot"], input=script, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or done.stderr:
        raise Wrong(f"gnuplot: {done.stderr}")


def quoted(text):
    """Quotes text for gnuplot."""
    return "'" + text.replace("'", "''") + "'"
