//! Resolves collisions between generated names and the names of workers and their files.
//!
//! A generated or answered name takes precedence: a file on disk with that name is shown as
//! `<name>.own`. Both the tree and the paths in generated files follow this rule.

use swarmletfs_base::name::Name;

pub const INDEX: &str = "index.json";
/// Suffix of a file whose name collides with a generated name.
pub(super) const OWN_SUFFIX: &str = ".own";

pub fn is_index(name: &Name) -> bool {
    name.as_bytes() == INDEX.as_bytes()
}

/// Returns the name under which the file `name` on disk is shown: with `.own` appended if it
/// collides with a reserved name.
pub fn shown_name(name: &Name, is_reserved: fn(&Name) -> bool) -> Name {
    if !collides(name, is_reserved) {
        return name.clone();
    }
    Name::new([name.as_bytes(), OWN_SUFFIX.as_bytes()].concat()).unwrap_or_else(|_| name.clone())
}

/// Returns the name on disk of the file shown as `name`, or `None` if `name` is reserved.
pub fn stored_name(name: &Name, is_reserved: fn(&Name) -> bool) -> Option<Name> {
    if !collides(name, is_reserved) {
        return Some(name.clone());
    }
    Name::new(name.as_bytes().strip_suffix(OWN_SUFFIX.as_bytes())?).ok()
}

/// Returns true if `name` is reserved, or reserved with `.own` appended any number of times.
fn collides(name: &Name, is_reserved: fn(&Name) -> bool) -> bool {
    let mut bytes = name.as_bytes();
    while let Some(rest) = bytes.strip_suffix(OWN_SUFFIX.as_bytes()) {
        bytes = rest;
    }
    Name::new(bytes).is_ok_and(|name| is_reserved(&name))
}

#[cfg(test)]
mod tests {
    use super::super::shown_path::is_generated;
    use super::*;

    #[test]
    fn stored_name_inverts_shown_name() {
        for text in [
            "a",
            "summary",
            "summary.own",
            "summary.own.own",
            "evidence.4k.txt",
            "summary.model.txt",
            "changes.diff",
            "changes.4k.diff",
            "x.own",
            ".own",
            "index.json",
            "children",
            "continues",
            "grep",
            "grep.i@*.md",
        ] {
            let name = Name::new(text).unwrap();
            let shown = shown_name(&name, is_generated);
            assert!(!is_generated(&shown), "{text} is shown under a reserved name");
            assert_eq!(stored_name(&shown, is_generated), Some(name), "{text}");
        }
        assert_eq!(stored_name(&Name::new("summary").unwrap(), is_generated), None);
    }
}
