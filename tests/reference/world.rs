//! A store, the views of it, and the model: changes go to the store, and what is seen is held against the model.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::compare::{Sight, compare, keeps_apart};
use super::eyes::Eyes;
use super::ground::{Ground, Raw, What};
use super::held::Open;
use super::model::Model;
use super::ops::{MINE, Op};
use super::view::{Says, Shown, view};
use crate::support::Seen;

/// Budgets that are asked for, one in a turn.
const BUDGETS: [usize; 6] = [0, 1, 60, 300, 1_000, 4_096];
/// In every turn they are asked for in one of so many folders.
const EVERY: usize = 3;
/// The view of everything, and one owner's.
const VIEWS: [Option<&str>; 2] = [None, Some(MINE)];

type Must = BTreeMap<Vec<u8>, Shown>;

pub struct World<'a> {
    ground: &'a dyn Ground,
    eyes: [&'a dyn Eyes; 2],
    models: [Model; 2],
    raw: Raw,
    must: [Must; 2],
    turn: usize,
    open: Vec<Open>,
    /// What could not be opened.
    troubles: Vec<String>,
    /// The folders of the owner's workers.
    mine: Vec<Vec<u8>>,
}

impl<'a> World<'a> {
    pub fn new(ground: &'a dyn Ground, eyes: [&'a dyn Eyes; 2]) -> World<'a> {
        let (models, must) = Default::default();
        let (open, troubles, mine) = Default::default();
        let mut world = World { ground, eyes, models, raw: Raw::default(), must, turn: 0, open, troubles, mine };
        world.look();
        world
    }

    /// Does all of a turn.
    pub fn turn(&mut self, turn: usize, ops: &[Op]) {
        self.turn = turn;
        for (n, op) in ops.iter().enumerate() {
            match op {
                Op::Open(path) => self.open(path),
                Op::Close => self.close_all(),
                change => change.apply(self.ground, &self.raw, &format!("token-{turn}-{n}.")),
            }
            self.raw = self.ground.raw();
            self.open.iter_mut().for_each(|open| open.note(&self.raw));
        }
        self.look();
    }

    /// Looks once at what lies there, as the product will.
    fn look(&mut self) {
        self.raw = self.ground.raw();
        let unshared = self.raw.unshared();
        let swarm = self.models[0].look(&self.raw);
        self.must[0] = view(&swarm, &self.raw, None);
        let swarm = self.models[1].look(&unshared);
        self.must[1] = view(&swarm, &unshared, Some(MINE));
        let mine = swarm.workers.iter().filter(|worker| worker.record.owner.as_deref() == Some(MINE));
        self.mine = mine.map(|worker| worker.path.clone()).collect();
    }

    /// Opens a file in both views, where it is there.
    fn open(&mut self, path: &str) {
        for (number, eyes) in self.eyes.into_iter().enumerate() {
            match Open::new(number, eyes, path, self.must[number].get(path.as_bytes())) {
                Ok(open) => self.open.extend(open),
                Err(trouble) => self.troubles.push(trouble),
            }
        }
    }

    pub fn held(&self) -> usize {
        self.open.len()
    }

    pub fn close_all(&mut self) {
        for open in std::mem::take(&mut self.open) {
            let eyes = self.eyes[open.view];
            open.close(eyes);
        }
    }

    /// Holds everything that is seen now against what must be.
    pub fn check(&self) -> Result<(), String> {
        if let Some(trouble) = self.troubles.first() {
            return Err(trouble.clone());
        }
        for ((owner, eyes), must) in VIEWS.iter().zip(self.eyes).zip(&self.must) {
            let said = |what: String| format!("in the view of {}: {what}", owner.unwrap_or("all"));
            let sight = eyes.all().map_err(said)?;
            compare(must, &sight).map_err(said)?;
            if owner.is_some() {
                let mine: Vec<&[u8]> = self.mine.iter().map(Vec::as_slice).collect();
                keeps_apart(&self.raw.unshared(), &self.raw, &mine, must, &sight).map_err(said)?;
            }
            asked(eyes, must, &sight, self.turn).map_err(said)?;
            self.absent(eyes, must).map_err(said)?;
        }
        self.open.iter().try_for_each(|open| open.check(self.eyes[open.view]))
    }

    /// What must not be there cannot be reached by its name either, and looks like what never was.
    fn absent(&self, eyes: &dyn Eyes, must: &Must) -> Result<(), String> {
        let workers = self.raw.below(b"workers").chain(self.raw.below(b"")).map(|(path, _)| path);
        for path in workers.filter(|path| path.iter().filter(|b| **b == b'/').count() < 2) {
            let path = [b"workers/", path].concat();
            let above = must.get(path.rsplitn(2, |b| *b == b'/').last().unwrap());
            // An asked name answers without being listed.
            if must.contains_key(&path) || path.ends_with(b"/evidence.4k.txt") {
                continue;
            }
            let errno = match above {
                Some(Shown::Folder(_)) => Errno::NOENT,
                Some(_) => Errno::NOTDIR,
                // What is above is looked for itself.
                None => continue,
            };
            match eyes.at(&path) {
                Err(found) if found == errno => {}
                other => return Err(format!("{}: {other:?}, and must not be there", path.escape_ascii())),
            }
        }
        Ok(())
    }

    /// Holds what is seen now against what others see who look for the first time: the same bytes, times and modes.
    pub fn check_against(&self, fresh: [&dyn Eyes; 2]) -> Result<(), String> {
        if self.models[0].remembers(&self.raw) || self.models[1].remembers(&self.raw.unshared()) {
            // They cannot know what a torn file said before.
            return Ok(());
        }
        for (held, fresh) in self.eyes.into_iter().zip(fresh) {
            let (held, fresh) = (held.all()?, fresh.all()?);
            let differs = held.iter().find(|(path, seen)| fresh.get(*path) != Some(seen));
            if let Some((path, seen)) = differs {
                let path_shown = path.escape_ascii();
                return Err(format!("{path_shown}: {seen:?}\nand looked at for the first time {:?}", fresh.get(path)));
            }
        }
        Ok(())
    }
}

/// Wherever there is an excerpt, one of any size can be asked for, and it is never larger.
fn asked(eyes: &dyn Eyes, must: &Must, sight: &Sight, turn: usize) -> Result<(), String> {
    let budget = BUDGETS[turn % BUDGETS.len()];
    let excerpts = must.iter().filter(|(path, shown)| {
        let text = matches!(shown, Shown::Made { says: Says::Text(..) | Says::Causes(..), .. });
        text && path.ends_with(b"evidence.txt")
    });
    for (path, _) in excerpts.skip(turn % EVERY).step_by(EVERY) {
        let folder = path.strip_suffix(b"evidence.txt").unwrap();
        let path = [folder, format!("evidence.{budget}.txt").as_bytes()].concat();
        let said = |what: String| format!("{}: {what}", path.escape_ascii());
        match eyes.at(&path) {
            Ok(Seen::File { bytes, .. }) if bytes.len() <= budget => {}
            Ok(other) => return Err(said(format!("{other:?}"))),
            Err(errno) => return Err(said(errno.to_string())),
        }
        if sight.contains_key(&path) {
            return Err(said("it is listed".into()));
        }
    }
    Ok(())
}

impl Model {
    /// Whether something is known that lies in the store no more.
    pub fn remembers(&self, raw: &Raw) -> bool {
        self.is_from_before(|path| match raw.get(path) {
            Some(What::File(text)) => serde_json::from_slice::<serde_json::Value>(text).is_ok(),
            _ => false,
        })
    }
}
