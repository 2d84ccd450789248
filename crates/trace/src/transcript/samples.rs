//! Logs of inspect_ai: an archive (zip) with a file for each sample, or one JSON document with a
//! list of them. Each sample is read as a file of lines: its facts, its messages and calls in
//! order, and its end.
//!
//! A log is written as a whole, again and again while it grows. A listing holds the places of the
//! samples; a sample is decompressed when it is read.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read};
use std::sync::Arc;

use flate2::read::DeflateDecoder;
use parking_lot::Mutex;
use rawzip::{CompressionMethod, ReaderAt, ZipArchive, ZipArchiveEntryWayfinder, ZipLocator};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::json_text::json_text;
use super::super::lenient::{MaybeStr, MaybeU64, object};
use super::cached_transcript::TranscriptVersion;
use super::location::TranscriptLocation;
use super::sample_lines::{EvalHeader, sample_lines};
use super::zstd::Decompressed;
use swarmletfs_base::digest::digest;
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::name::{Name, RelPath, to_file_name};
use swarmletfs_base::store::{File, Identity, Meta, Store, Time, copy_from, read_range};

/// The bytes with which an archive begins.
pub(crate) const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
/// Maximum size of a document and of a sample, in bytes.
const TEXT_MAX: u64 = 256 << 20;
/// Maximum number of samples in a log; further ones are not read.
const SAMPLES_MAX: usize = 100_000;
/// Maximum number of logs whose listings are kept.
const LOGS_MAX: usize = 1_000;
/// Maximum size of the samples that are kept, in bytes.
const KEPT_BYTES: usize = 64 << 20;
const SAMPLES: &[u8] = b"samples/";
const SUFFIX: &[u8] = b".json";
/// The files of an archive with the facts about the run; the first is there once it has ended.
const HEADERS: [&[u8]; 2] = [b"header.json", b"_journal/start.json"];
const DAMAGED: Error = Error::Malformed("the archive is not complete");
const TORN: Error = Error::Malformed("the document is not complete");
const EXCESS: Error =
    Error::Malformed("it holds more than 100,000 samples, and the last ones are not shown");

/// The logs of a store, and the samples that were read most recently.
#[derive(Default)]
pub(super) struct EvalLogs {
    listings: Mutex<HashMap<RelPath, Arc<LogListing>>>,
    kept: Mutex<VecDeque<KeptSample>>,
}

struct KeptSample {
    path: RelPath,
    version: TranscriptVersion,
    lines: Arc<[u8]>,
    facts: SampleFacts,
}

struct LogListing {
    version: TranscriptVersion,
    header: EvalHeader,
    samples: BTreeMap<Name, SampleEntry>,
    /// The error that ended the list early.
    error: Option<Error>,
    /// Sizes of the samples that were read, and the times of their ends in milliseconds.
    facts: Mutex<HashMap<Name, SampleFacts>>,
}

#[derive(Clone, Copy)]
struct SampleFacts {
    size: u64,
    ended: Option<i64>,
}

#[derive(Clone, Copy)]
struct SampleEntry {
    place: SamplePlace,
    /// Checksum of its content.
    sum: u64,
}

#[derive(Clone, Copy)]
enum SamplePlace {
    Member(ZipArchiveEntryWayfinder, CompressionMethod),
    /// Offset and length in the document.
    Range(u64, usize),
}

impl LogListing {
    /// Returns the metadata of a sample as a file; `own` is the metadata of the log. The time is
    /// the end of the sample, so that it stays when the log grows.
    fn meta(&self, own: Meta, name: &Name, facts: SampleFacts) -> Meta {
        let sum = self.samples.get(name).map_or(0, |entry| entry.sum);
        let stated = facts.ended.map(|millis| Time {
            secs: millis.div_euclid(1_000),
            // The part below a millisecond tells states with the same size and time apart.
            nanos: millis.rem_euclid(1_000) as u32 * 1_000_000 + (sum % 1_000_000) as u32,
        });
        let time = stated.filter(|time| *time <= own.mtime).unwrap_or(own.mtime);
        let mut hash = blake3::Hasher::new();
        hash.update(name.as_bytes()).update(&sum.to_le_bytes());
        let identity = Identity { ino: u64::from_le_bytes(digest(&hash)), ..own.identity };
        Meta { size: facts.size, nlink: 1, identity, mtime: time, ctime: time, ..own }
    }
}

impl EvalLogs {
    /// Returns the names of the samples in the log at `path`, sorted. If it cannot be read, returns
    /// the error, and the samples that were there before.
    pub(super) fn samples(&self, store: &dyn Store, path: &RelPath) -> (Vec<Name>, Option<Error>) {
        let (listing, error) = match self.listing(store, path, path) {
            Ok((_, listing)) => (Some(listing.clone()), listing.error.clone()),
            // It may be in the middle of being written.
            Err(error) => (self.listings.lock().get(path).cloned(), Some(error)),
        };
        let names = listing.iter().flat_map(|listing| listing.samples.keys()).cloned();
        (names.collect(), error)
    }

    /// Returns the metadata and the listing of the log at `path` in `folder`, whose path from the
    /// store's root is `key`.
    fn listing(
        &self,
        folder: &dyn Store,
        path: &RelPath,
        key: &RelPath,
    ) -> Result<(Meta, Arc<LogListing>)> {
        let own = folder.stat(path)?;
        let version = TranscriptVersion::new(own);
        let known = self.listings.lock().get(key).cloned();
        if let Some(known) = known.filter(|known| known.version == version) {
            return Ok((own, known));
        }
        let file = folder.open(path)?;
        let (header, samples, error) = list(&*file)?;
        let facts = Mutex::default();
        let listing = Arc::new(LogListing { version, header, samples, error, facts });
        let mut listings = self.listings.lock();
        if listings.len() >= LOGS_MAX {
            listings.clear();
        }
        listings.insert(key.clone(), listing.clone());
        Ok((own, listing))
    }

    /// Opens the sample at `location` in the entered directory `folder`.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read, or has no such sample.
    pub(super) fn open(
        &self,
        folder: &dyn Store,
        location: &TranscriptLocation,
    ) -> Result<SampleFile> {
        let (path, log, name) = (location.path(), location.transcript.parent(), &location.name);
        let (own, listing) = self.listing(folder, &log, &path.parent())?;
        let entry = listing.samples.get(name).ok_or(Error::NotFound)?;
        let known = {
            let kept = self.kept.lock();
            let mut kept = kept.iter();
            let known = kept.find(|kept| kept.path == path && kept.version == listing.version);
            known.map(|kept| (kept.lines.clone(), kept.facts))
        };
        let (lines, facts) = match known {
            Some(known) => known,
            None => {
                let text = read_sample(&*folder.open(&log)?, entry.place)?;
                let (lines, ended) = sample_lines(&listing.header, &text);
                let facts = SampleFacts { size: lines.len() as u64, ended };
                let lines: Arc<[u8]> = lines.into();
                self.keep(KeptSample {
                    path,
                    version: listing.version,
                    lines: lines.clone(),
                    facts,
                });
                listing.facts.lock().insert(name.clone(), facts);
                (lines, facts)
            }
        };
        Ok(SampleFile { meta: listing.meta(own, name, facts), lines })
    }

    fn keep(&self, sample: KeptSample) {
        let mut kept = self.kept.lock();
        kept.retain(|other| other.path != sample.path);
        kept.push_back(sample);
        let mut size = kept.iter().map(|kept| kept.lines.len()).sum::<usize>();
        while size > KEPT_BYTES && kept.len() > 1 {
            size -= kept.pop_front().map_or(0, |first| first.lines.len());
        }
    }

    /// Returns the metadata of a sample as a file.
    pub(super) fn meta(&self, folder: &dyn Store, location: &TranscriptLocation) -> Result<Meta> {
        let log = location.transcript.parent();
        let (own, listing) = self.listing(folder, &log, &location.path().parent())?;
        let known = listing.facts.lock().get(&location.name).copied();
        match known {
            Some(facts) => Ok(listing.meta(own, &location.name, facts)),
            None => self.open(folder, location)?.meta(),
        }
    }
}

/// A sample of a log that reads as its lines.
pub(super) struct SampleFile {
    lines: Arc<[u8]>,
    meta: Meta,
}

impl File for SampleFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(copy_from(&self.lines, offset, buffer))
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.meta)
    }
}

type Listed = (EvalHeader, BTreeMap<Name, SampleEntry>, Option<Error>);

/// Lists the samples of a log. Returns the error that ended the list early, if any.
fn list(file: &dyn File) -> Result<Listed> {
    if read_range(file, 0, ZIP_MAGIC.len())? == ZIP_MAGIC {
        return list_archive(file);
    }
    let text = read_text(file.meta()?.size.min(TEXT_MAX + 1), file, 0)?;
    let mut log = LogDocument::default();
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let error = deserializer.deserialize_any(DocumentVisitor(&mut log)).err();
    let header = log.eval.and_then(object::<EvalHeader>).unwrap_or_default();
    let mut samples = BTreeMap::new();
    for raw in log.samples.iter().take(SAMPLES_MAX) {
        let raw = raw.get();
        let id: SampleId<'_> = object(raw).unwrap_or_default();
        let name = format!("{}_epoch_{}", id.text(), id.epoch.0.unwrap_or(1));
        // The text of the sample is a part of the document's.
        let offset = raw.as_ptr() as usize - text.as_ptr() as usize;
        let sum = u64::from_le_bytes(digest(blake3::Hasher::new().update(raw.as_bytes())));
        let place = SamplePlace::Range(offset as u64, raw.len());
        samples.insert(to_file_name(&name, &[]), SampleEntry { place, sum });
    }
    let is_excessive = log.samples.len() > SAMPLES_MAX;
    Ok((header, samples, error.map(|_| TORN).or(is_excessive.then_some(EXCESS))))
}

fn list_archive(file: &dyn File) -> Result<Listed> {
    let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
    let archive = open_archive(file, &mut buffer)?;
    let mut samples = BTreeMap::new();
    let mut headers: [Option<SamplePlace>; HEADERS.len()] = [None; HEADERS.len()];
    let mut excess = None;
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(|_| DAMAGED)? {
        let path = entry.file_path();
        let place = SamplePlace::Member(entry.wayfinder(), entry.compression_method());
        let path = path.as_bytes();
        if let Some(at) = HEADERS.iter().position(|name| *name == path) {
            headers.iter_mut().skip(at).take(1).for_each(|header| *header = Some(place));
        }
        let stem = path.strip_prefix(SAMPLES).and_then(|path| path.strip_suffix(SUFFIX));
        if let Some(stem) = stem {
            if samples.len() == SAMPLES_MAX {
                excess = Some(EXCESS);
                continue;
            }
            let name = to_file_name(&String::from_utf8_lossy(stem), &[]);
            // A file that was written again counts as it was last.
            samples.insert(name, SampleEntry { place, sum: entry.crc32().into() });
        }
    }
    let header = headers.into_iter().flatten().next();
    let header = header.map(|place| read_sample(file, place)).transpose()?.unwrap_or_default();
    let header = object::<HeaderDocument<'_>>(&header).and_then(|header| header.eval);
    let header = header.and_then(|eval| object::<EvalHeader>(eval.get())).unwrap_or_default();
    Ok((header, samples, excess))
}

/// Reads the text of a sample.
fn read_sample(file: &dyn File, place: SamplePlace) -> Result<String> {
    let (wayfinder, method) = match place {
        SamplePlace::Range(offset, len) => return read_text(len as u64, file, offset),
        SamplePlace::Member(wayfinder, method) => (wayfinder, method),
    };
    let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
    let archive = open_archive(file, &mut buffer)?;
    let reader = archive.get_entry(wayfinder).map_err(|_| DAMAGED)?.reader();
    let reader: &mut dyn Read = match method {
        CompressionMethod::STORE => &mut { reader },
        CompressionMethod::DEFLATE => &mut DeflateDecoder::new(reader),
        CompressionMethod::ZSTD => &mut Decompressed::new(reader),
        _ => return Err(Error::Malformed("a member of the archive is compressed in another way")),
    };
    let mut bytes = Vec::new();
    reader.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(|_| DAMAGED)?;
    to_text(&bytes)
}

fn open_archive<'a>(file: &'a dyn File, buffer: &mut [u8]) -> Result<ZipArchive<StoreReader<'a>>> {
    let size = file.meta()?.size;
    let archive = ZipLocator::new().locate_in_reader(StoreReader(file), buffer, size);
    archive.map_err(|_| DAMAGED)
}

fn read_text(size: u64, file: &dyn File, offset: u64) -> Result<String> {
    let bytes = read_range(file, offset, usize::try_from(size).unwrap_or(usize::MAX))?;
    to_text(&bytes)
}

fn to_text(bytes: &[u8]) -> Result<String> {
    if bytes.len() as u64 > TEXT_MAX {
        return Err(Error::Malformed("a text of more than 256 MiB"));
    }
    Ok(json_text(bytes).into_owned())
}

/// A file of a store, for the reader of archives.
struct StoreReader<'a>(&'a dyn File);

impl ReaderAt for StoreReader<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset).map_err(io::Error::other)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct HeaderDocument<'a> {
    eval: Option<&'a RawValue>,
}

/// The ID of a sample: a text or a number.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct SampleId<'a> {
    id: Option<&'a RawValue>,
    epoch: MaybeU64,
}

impl SampleId<'_> {
    fn text(&self) -> String {
        let id = self.id.map(RawValue::get).unwrap_or_default();
        match serde_json::from_str(id) {
            Ok(MaybeStr(Some(text))) => text.into_owned(),
            _ => id.to_owned(),
        }
    }
}

/// The parts of a document that were read, even if it is torn.
#[derive(Default)]
struct LogDocument<'a> {
    eval: Option<&'a str>,
    samples: Vec<&'a RawValue>,
}

struct DocumentVisitor<'l, 'a>(&'l mut LogDocument<'a>);

impl<'de: 'a, 'a> Visitor<'de> for DocumentVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a log of inspect_ai")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<MaybeStr<'de>>()? {
            match name.as_str() {
                "eval" => self.0.eval = Some(map.next_value::<&'de RawValue>()?.get()),
                "samples" => map.next_value_seed(SamplesSeed(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct SamplesSeed<'l, 'a>(&'l mut LogDocument<'a>);

impl<'de: 'a, 'a> DeserializeSeed<'de> for SamplesSeed<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for SamplesSeed<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of samples")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(sample) = list.next_element::<&'de RawValue>()? {
            // One more than are shown tells that there are more.
            if self.0.samples.len() <= SAMPLES_MAX {
                self.0.samples.push(sample);
            }
        }
        Ok(())
    }
}
