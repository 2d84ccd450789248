//! Reads return the correct bytes (R12), for every system call and offset. Files of workers are
//! compared with the store, and generated files with their first reading. Nothing changes
//! meanwhile; `snapshots` and `change` cover that.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use rustix::fd::OwnedFd;
use rustix::fs::{Advice, MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use serde_json::json;

use crate::hostile::Dice;
use crate::needs_fuse;
use crate::support::{Mount, TestStore, scale, seed};

/// Number of reads, over all [`THREADS`] threads.
const READS: usize = 100_000;
const THREADS: usize = 4;
/// Number of memory mappings.
const MAPS: usize = 5_000;

/// Lengths of the workers' files. One is sparse and larger than 32 bits can count.
const LENGTHS: [usize; 9] = [0, 1, 4_095, 4_096, 4_097, 131_071, 131_073, 3 << 20, (3 << 20) + 7];
const SPARSE: u64 = (5 << 30) + 11;

/// A file of the mount and its expected content.
struct Subject {
    shown: PathBuf,
    right: PathBuf,
    length: u64,
}

fn store() -> TestStore {
    let store = TestStore::new();
    let mut dice = Dice::new(seed());
    store.worker("w", json!({"status": "failed", "error": "the build failed"}));
    for number in 1..40 {
        let lines: String =
            (0..dice.below(300)).map(|line| format!("{line}: {:x}\n", dice.next())).collect();
        store.call("w", number, "build", format!("{lines}Error: step {number} failed\n"));
    }
    for length in LENGTHS {
        let bytes: Vec<u8> =
            (0..length.div_ceil(8)).flat_map(|_| dice.next().to_le_bytes()).take(length).collect();
        store.write(format!("workers/w/data/{length}"), bytes);
    }
    let sparse = File::create(store.at("workers/w/data/sparse")).unwrap();
    for at in [5_000, (1 << 31) - 3, (1 << 32) - 3, SPARSE - 3] {
        sparse.write_all_at(b"island", at).unwrap();
    }
    sparse.set_len(SPARSE).unwrap();
    store
}

/// Returns all files to read. `copies` receives the first reading of each generated file.
fn subjects(store: &TestStore, mount: &Mount, copies: &tempfile::TempDir) -> Vec<Subject> {
    let own = LENGTHS.iter().map(usize::to_string).chain(["sparse".to_owned()]);
    let own = own.map(|name| format!("workers/w/data/{name}"));
    let mut pairs: Vec<_> = own.map(|path| (mount.at(&path), store.at(&path))).collect();
    let generated = [
        "README.md",
        "index.json",
        "workers/w/summary",
        "workers/w/evidence.txt",
        "evidence.200k.txt",
    ];
    for (number, path) in generated.iter().enumerate() {
        let copy = copies.path().join(number.to_string());
        fs::write(&copy, mount.read(path)).unwrap();
        pairs.push((mount.at(path), copy));
    }
    let subject = |(shown, right): (PathBuf, PathBuf)| {
        let length = fs::metadata(&right).unwrap().len();
        Subject { shown, right, length }
    };
    pairs.into_iter().map(subject).collect()
}

/// Picks an offset: near a page boundary, the 32-bit limit or the end of the file, or anywhere.
fn offset(dice: &mut Dice, length: u64) -> u64 {
    let pages = length / 4_096 + 1;
    let edge = match dice.below(6) {
        0 => 0,
        1 => length,
        2 => *dice.pick(&[1 << 31, 1 << 32]),
        3 => dice.next() % pages * 4_096,
        _ => return dice.next() % (length + 4_096),
    };
    (edge + dice.next() % 8).saturating_sub(4)
}

fn length(dice: &mut Dice) -> usize {
    match dice.below(20) {
        0 => 0,
        1 => 1,
        2..8 => 4_094 + dice.below(5),
        8..11 => dice.below(200_000),
        _ => dice.below(2_000),
    }
}

fn open(subject: &Subject, flags: OFlags) -> OwnedFd {
    rustix::fs::open(&subject.shown, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())
        .unwrap_or_else(|errno| panic!("{:?}: {errno}", subject.shown))
}

fn memory() -> File {
    rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).unwrap().into()
}

fn read_all(mut copy: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    rustix::fs::seek(&copy, SeekFrom::Start(0)).unwrap();
    copy.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Repeats `call` until `length` bytes have arrived or no more do.
fn call_until_complete(
    length: usize,
    mut call: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let mut came = 0;
    while came < length {
        match call(length - came)? {
            0 => break,
            more => came += more,
        }
    }
    Ok(())
}

/// Reads into several buffers of random lengths in one call.
fn read_scattered(
    dice: &mut Dice,
    length: usize,
    call: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let first = dice.below(length + 1);
    let second = dice.below(length - first + 1);
    let mut parts = [vec![0; first], vec![0; second], vec![0; length - first - second]];
    let read = call(&mut parts.each_mut().map(|part| IoSliceMut::new(part)))?;
    let mut bytes = parts.concat();
    bytes.truncate(read);
    Ok(bytes)
}

type Call = fn(&mut Dice, &Subject, &OwnedFd, u64, usize) -> Result<Vec<u8>, Errno>;

/// Each call must return all existing bytes of `length` bytes at `offset`.
const CALLS: [(&str, Call); 10] = [
    ("read", |_, _, fd, offset, length| {
        rustix::fs::seek(fd, SeekFrom::Start(offset))?;
        let mut bytes = vec![0; length];
        let read = rustix::io::read(fd, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }),
    ("pread", |_, _, fd, offset, length| pread(fd, offset, length)),
    ("readv", |dice, _, fd, offset, length| {
        rustix::fs::seek(fd, SeekFrom::Start(offset))?;
        read_scattered(dice, length, |parts| rustix::io::readv(fd, parts))
    }),
    ("preadv", |dice, _, fd, offset, length| {
        read_scattered(dice, length, |parts| rustix::io::preadv(fd, parts, offset))
    }),
    ("sendfile", |_, _, fd, mut offset, length| {
        let copy = memory();
        call_until_complete(length, |rest| {
            rustix::fs::sendfile(&copy, fd, Some(&mut offset), rest)
        })?;
        Ok(read_all(copy))
    }),
    ("splice", |_, _, fd, mut offset, length| {
        let ((end, start), mut bytes) = (rustix::pipe::pipe()?, Vec::new());
        call_until_complete(length, |rest| {
            let came = rustix::pipe::splice(
                fd,
                Some(&mut offset),
                &start,
                None,
                rest,
                SpliceFlags::empty(),
            )?;
            let from = bytes.len();
            bytes.resize(from + came, 0);
            let mut filled = from;
            while filled < bytes.len() {
                filled += rustix::io::read(&end, &mut bytes[filled..])?;
            }
            Ok(came)
        })?;
        Ok(bytes)
    }),
    ("copy_file_range, or what cp does where it is refused", |_, _, fd, mut offset, length| {
        let copy = memory();
        match call_until_complete(length, |rest| {
            rustix::fs::copy_file_range(fd, Some(&mut offset), &copy, None, rest)
        }) {
            Err(Errno::XDEV) => pread(fd, offset, length),
            other => other.map(|()| read_all(copy)),
        }
    }),
    ("O_DIRECT", |_, subject, fd, offset, length| {
        match pread(&open(subject, OFlags::DIRECT), offset, length) {
            // Direct reads by the kernel follow the alignment rules of the disk.
            Err(Errno::INVAL) => pread(fd, offset, length),
            read => read,
        }
    }),
    ("a fresh descriptor", |_, subject, _, offset, length| {
        pread(&open(subject, OFlags::empty()), offset, length)
    }),
    ("fadvise", |dice, _, fd, offset, length| {
        let advice = [
            Advice::DontNeed,
            Advice::WillNeed,
            Advice::Random,
            Advice::Sequential,
            Advice::Normal,
        ];
        // Reads the whole file, or from an offset to its end.
        let from = if dice.once_in(2) { 0 } else { offset };
        rustix::fs::fadvise(fd, from, None, *dice.pick(&advice))?;
        pread(fd, offset, length)
    }),
];

fn pread(fd: &OwnedFd, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(fd, &mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Makes `reads` random calls. The same `seed` makes the same calls.
fn exercise(subjects: &[Subject], seed: u64, reads: usize) {
    let mut dice = Dice::new(seed);
    let shown: Vec<OwnedFd> =
        subjects.iter().map(|subject| open(subject, OFlags::empty())).collect();
    let right: Vec<File> =
        subjects.iter().map(|subject| File::open(&subject.right).unwrap()).collect();
    for number in 0..reads {
        let at = dice.below(subjects.len());
        let (subject, (name, call)) = (&subjects[at], dice.pick(&CALLS));
        let (offset, length) = (offset(&mut dice, subject.length), length(&mut dice));
        let what = || {
            format!(
                "seed {seed}, call {number}: {name} of {length} at {offset} of {:?}",
                subject.shown
            )
        };
        let found = call(&mut dice, subject, &shown[at], offset, length)
            .unwrap_or_else(|e| panic!("{}: {e}", what()));
        let mut wanted = vec![0; length];
        let there = right[at].read_at(&mut wanted, offset).unwrap();
        wanted.truncate(there);
        if found != wanted {
            let first = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            panic!(
                "{}: read {} bytes of {}; first wrong byte: {first:?}",
                what(),
                found.len(),
                wanted.len()
            );
        }
        if dice.once_in(50) {
            let size = rustix::fs::fstat(&shown[at]).unwrap().st_size;
            assert_eq!(size as u64, subject.length, "{}", what());
            let ends =
                [SeekFrom::End(0), SeekFrom::Hole(0)].map(|to| rustix::fs::seek(&shown[at], to));
            let data = rustix::fs::seek(&shown[at], SeekFrom::Data(0));
            // All of a file is reported as data, even if it is sparse.
            let [wanted_end, wanted_data] =
                if size == 0 { [Err(Errno::NXIO); 2] } else { [Ok(size as u64), Ok(0)] };
            assert_eq!(
                (ends[0], ends[1], data),
                (Ok(size as u64), wanted_end, wanted_data),
                "{}",
                what()
            );
        }
    }
}

/// Promise: Every read call returns the right bytes at every offset.
#[test]
fn read_calls_return_the_right_bytes_at_every_offset() {
    needs_fuse!();
    let (store, copies) = (store(), tempfile::tempdir().unwrap());
    let mount = Mount::new(&store.path());
    let subjects = &subjects(&store, &mount, &copies);
    thread::scope(|scope| {
        for seed in seed()..seed() + THREADS as u64 {
            scope.spawn(move || exercise(subjects, seed, scale(READS) / THREADS));
        }
    });
}

/// Maps parts of files at random, shared or private, and compares them with the expected bytes.
/// Writing to a private mapping changes nothing. Reads lines with a file and its expected copy;
/// arguments: seed, number of mappings.
const MAPPER: &str = r#"
import mmap, os, random, sys
seed, maps = int(sys.argv[1]), int(sys.argv[2])
pairs = [line.split("\t") for line in sys.stdin.read().splitlines()]
dice = random.Random(seed)
for number in range(maps):
    shown, right = dice.choice(pairs)
    size = os.path.getsize(right)
    if size == 0:
        continue
    start = dice.choice([0, dice.randrange(size), max(size - 9000, 0)]) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    length = min(dice.choice([1, 4096, 4097, 70000]), size - start)
    private = dice.random() < 0.5
    what = f"seed {seed}, map {number}: {length} at {start} of {shown}, private: {private}"
    with open(shown, "rb") as a, open(right, "rb") as b:
        kind, access = (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) if private else (mmap.MAP_SHARED, mmap.PROT_READ)
        with mmap.mmap(a.fileno(), length, kind, access, offset=start) as found:
            b.seek(start)
            wanted = b.read(length)
            if found[:] != wanted:
                sys.exit(what)
            if private:
                found[0] ^= 255
                a.seek(start)
                if a.read(length) != wanted:
                    sys.exit(what + ": a private change was seen")
"#;

/// Promise: Every memory mapping holds the right bytes.
#[test]
fn memory_mappings_hold_the_right_bytes() {
    needs_fuse!();
    let (store, copies) = (store(), tempfile::tempdir().unwrap());
    let mount = Mount::new(&store.path());
    let mut python = Command::new("python3");
    python
        .args(["-c", MAPPER, &seed().to_string(), &scale(MAPS).to_string()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut python = python.spawn().expect("python3");
    let mut pairs = python.stdin.take().unwrap();
    for subject in subjects(&store, &mount, &copies) {
        writeln!(pairs, "{}\t{}", subject.shown.display(), subject.right.display()).unwrap();
    }
    drop(pairs);
    let done = python.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
