//! The read-only tree of swarmletfs, without a kernel: which workers there are, who may see them,
//! facts about them, answers to queries, and names, inodes and handles.
//!
//! Lowest layer first:
//!
//! ```text
//! catalog    snapshots of all workers, and how stale they may be
//! view       the catalog restricted to one owner; the only way to a name or a byte
//! search     regex and ranked search over the files of a view
//! analysis   facts about a worker: digest, checks, root cause, excerpts
//! route      names to requests: generated files, queries, cursors
//! query      answers as values: grep, search, compare, changes, the output of a call
//! output     values as text: index.json, summary, evidence.txt, changes
//! render     from a document of a view to bytes, again if it changes meanwhile
//! tree       names to nodes to attributes, listings and bytes; inodes and handles
//! ```
//!
//! # Modules
//!
//! `catalog`: All workers of all stores as last scanned, swapped as a whole. It decides how old
//! that information may be, watches workers for changes, and keeps the last good record of each
//! worker. Scans use all processors.
//!
//! `view`: The catalog as one reader may see it. `matches` in `view/visible.rs` is the only place
//! that decides who sees which worker. `ShortIds` has the shortest unique beginnings of the
//! workers' names.
//!
//! `search`: Finds text in files. `regex` chooses the files, bounds how much of each is read, and
//! finds matching lines with ripgrep's crates; it recognizes lines of transcripts and
//! other records that only repeat counted lines. `ranked` cuts text into passages, stores their
//! words in index segments, ranks passages for a query, and chooses which ones to show. `Glob`
//! serves both.
//!
//! `analysis`: Derives facts about workers from their records, for the files that show them.
//! `checks` compares a worker's claims with its record, and reports damage to the record.
//! `success_claim` recognizes claims of success in final words, and the calls that contradict them;
//! `claims` finds files that a worker names but that do not exist, or that no call wrote.
//! `root_cause` finds the message that explains a failure, and `excerpt` selects the lines of an
//! output, both by the signs of failure and `line_scores`. `file_uses` lists the files that a
//! worker read or changed, and `changes` rebuilds files from recorded edits, or compares the
//! contents of a workspace before and after a worker ran in it. `WorkerDigest` holds the facts
//! about a worker that files about many workers need; `DigestCache` keeps digests in memory, and
//! `DigestStore` in the cache directory. `settings` holds the limits, and the clock that every
//! analysis polls.
//!
//! `Analyzer` is the context that queries and files share: the view, the settings, the caches and
//! the watchdog. It reads the states, records, digests and word indexes of workers in time, and
//! reads the rest in the background (`backfill`). `selection` finds the workers of `by/` by their
//! `facets`. `overlaps` finds the files that several workers edited at overlapping times.
//!
//! `route`: The grammar of names. A name is parsed once into a `Document`, which exists only for
//! files that can be rendered. `Scope` is the set of workers that a query covers. `QueryDir` parses
//! the directories of queries, `Cursor` the names in `since/`. A file on disk whose name collides
//! with one of these is shown as `<name>.own` (`name_collision`), also in the paths of answers
//! (`shown_path`).
//!
//! `query`: Answers as values: `grep`, `search`, `compare` and the changes `since` a cursor, the
//! conditions that `wait` waits for, and the output of one call (`call_output`). A query takes an
//! `Analyzer` and a request that `route` parsed. An answer to a search also holds its text, since
//! its contents depend on the room in it. MCP, the command line and generated files call the same
//! functions.
//!
//! `output`: Values as text. `index` (with the structs in `json`), `summary` (with its `table` of
//! workers), `changes` and `since` write one kind of file each; `overlaps` writes a section of a
//! summary. `evidence` chooses and orders outputs, divides the budget and puts the file together;
//! `causes` groups workers that failed for one cause. `docs/EVIDENCE.md` explains the rules.
//! `marker` writes and parses the references to a worker's evidence. `verdict` says in 800 bytes
//! how one worker ended.
//!
//! `render`: Turns a document of a view into bytes. `Renderer::state` finds its inputs and detects
//! cheaply whether they have changed, and `Renderer::render` makes the bytes: of a report about one
//! worker (`worker`), of one about many, or of the answer to a query (`answers`). `list` returns
//! workers with the values of index.json. `expand` finds markers in text or JSON messages and
//! inserts evidence within a budget.
//!
//! `tree`: The names of `docs/LAYOUT.md`: nodes, attributes, inodes, handles and versions.
//! `FacetPath` parses the directories of `by/`. `path` resolves paths the way the kernel does, for
//! callers without a kernel, and holds their queries. `RequestClass` says which requests may be
//! slow. `warm_up` renders the reports of a made-up worker when a
//! mount starts, so that no reader waits until patterns are compiled. There are no FUSE types here,
//! so tests can walk the tree without a mount.
//!
//! # Freshness
//!
//! Nothing polls while nobody reads, except for one check per second whether a store directory was
//! replaced. A request rescans the catalog if its contents are older than a second (unfinished
//! workers, lists of workers) or the TTL (finished workers). A scan that took long stays valid for
//! 20 times its duration.
//!
//! Directories of workers are listed again only if they changed. Finished workers are checked one
//! after another within the TTL. If a worker changed but kept its place in the order, the view
//! updates it in place, so a change costs in proportion to its size, not to the size of the swarm.
//!
//! A fingerprint stats all files of a worker. Reading ACLs takes four calls per file instead of
//! one. So they are read only for generated files, whose mode decides who may read them, and not
//! for times, for lists in `by/` and for links. They are read again only if something changed since
//! the last fingerprint, or could have changed within a clock tick.
//!
//! Parsed metadata is kept for the next start, keyed by the results of stat, including the file's
//! kind and links. Every disk cache is keyed by everything that decides which bytes a view reads
//! (`Source::scope`: format, store, outputs directory, hard-link policy), by the process's user and
//! groups, and, if it holds results of a view, by the view's filter. A generated file is looked up
//! on every request, and generated again only if the fingerprint of its source changed.
//!
//! # Clock ticks
//!
//! If a clock ticks slowly, two changes within one tick leave the same size and time. So a result
//! computed less than one tick after a file's newest change is trusted for no longer than one scan
//! (`Fingerprint::version`), and neither pages nor listings of that state are kept. Facts of
//! transcripts, which only grow, are identified by size and times alone.
//!
//! # Finding changes
//!
//! `since` is the only file that trusts no cached state: it lists the stores and walks all files
//! anew. The server keeps no state per reader. A cursor holds the newest ctime seen before the walk
//! began, so anything that the walk misses is at least as new. It also holds a hash of the state,
//! so that nothing is reported twice while nothing happens. `wait` polls with the freshness above,
//! and walks only if a cheaper check reports a change.
//!
//! # Deadlines and incomplete answers
//!
//! A render stops reading outputs after two seconds and states in the file how many it did not
//! read. Such a file is not cached. The pool continues reading after the waiting requests are
//! answered, so the next read finds more.
//!
//! Work polls a `Deadline`, which every function that reads many files takes as a parameter. The
//! deadline of a render is its clock, which remembers whether it ever stopped the work; if it did,
//! the first line of the file names the missing parts. Commands without a mount have no deadline.
//! `--max-time` stops their clocks through a `Control`, which also counts for the progress line and
//! sets the exit code.
//!
//! Readers who request an incomplete file while it is generated, or within half a second after
//! that, receive the same one. Generating it for each of them would keep both processors from
//! reading on.
//!
//! Files about many workers need a `WorkerDigest` of each. Digests are cached by the fingerprint of
//! the worker's files, computed by several threads, and kept in the cache directory for the next
//! start, keyed by `cache::CACHE_FORMAT` among others.
//!
//! # Work that does not end
//!
//! Every parser of worker content takes time in proportion to its input. The watchdog is the second
//! line of defense. Work on one worker runs on a thread that its caller abandons 750 ms after the
//! deadline. The page then says that reading did not end, and no more work starts on that worker
//! until the thread returns. After five seconds the log reports it, and the thread gets the lowest
//! priority. At most 64 threads are abandoned at a time.
//!
//! Requests that wait for such a page do not hold up others: the pool starts another thread for
//! each request that has taken half a second while others wait.
//!
//! # Searches
//!
//! An answer is cached like any generated file: by the fingerprint of its workers' files. A lookup
//! has to compute it, because `stat` must report its size. So names that tools probe for by
//! themselves are refused before anything is read.
//!
//! Files are searched twice, first to count and then for the lines to show, so memory is bounded by
//! the size of these lines. A regex is timed on its own letters first. A slow regex gets smaller
//! chunks between two checks of the clock, and shorter lines. Each search has its own thread. Once
//! 32 are running, further searches queue in the pool.
//!
//! # Memory
//!
//! A worker in the catalog is its metadata, cut to length. Strings that many workers share (run,
//! owner, model) are interned, and entries of the store's own index are packed until needed.
//! Rendered bytes are kept up to 64 MiB, facts of transcripts up to 64 MiB, and segments of the
//! word index up to 96 MiB. Only the latest state of a generated file, and of data derived from a
//! worker, is kept. Outputs are read in chunks of a megabyte.
//!
//! # Locks
//!
//! Each lock is held for a moment, never across a disk read or a call into the kernel. There is one
//! exception: the watcher adds a watch under its lock, so that the event can be matched to its
//! worker. The heads of `catalog.rs` and `tree.rs` list their locks. A refresh only tries its lock,
//! and a reader who does not get it sees the current state. Only `since`, which must not miss
//! anything, waits for it.

pub mod analysis;
pub mod catalog;
pub mod output;
pub mod query;
pub mod render;
pub mod route;
#[cfg(test)]
#[path = "../../../tests/support/scale.rs"]
#[allow(dead_code, unreachable_pub)]
mod scale;
pub mod search;
pub mod tree;
pub mod view;
