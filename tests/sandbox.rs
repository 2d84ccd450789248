//! Attacks on the sandbox from inside, as root and as an ordinary user, each with a control that
//! succeeds without the sandbox.

mod files;
mod lifetime;
mod mounts;
mod nothing_answers;
mod other_paths;
mod place;
mod random;
mod refusals;
mod set_id;

use place::{Place, for_each_user};
