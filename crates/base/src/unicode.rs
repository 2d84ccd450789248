//! Unicode properties of characters: invisible characters, and characters that look alike.
//!
//! An invisible character hides text from people that programs and models read, or changes the
//! order in which people read a line. Unicode's property tables decide which characters are
//! invisible, so newer tables cover new characters.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization;
use unicode_security::confusable_detection::skeleton;

/// Characters without a glyph: default-ignorable characters, bidirectional controls and format
/// characters. Characters of `Prepended_Concatenation_Mark` are format characters but visible.
const INVISIBLE: &str = r"[\p{Default_Ignorable_Code_Point}\p{Bidi_Control}[\p{Format}--\p{Prepended_Concatenation_Mark}]]";
/// Characters that select the glyph variant of the preceding character.
const SELECTORS: &str = r"\p{Variation_Selector}";
/// Characters that join or separate the shapes of their neighbors.
const JOINERS: &str = r"\p{Join_Control}";
const DASHES: &str = r"\p{Dash}";
const FIRST_INVISIBLE: char = '\u{ad}';
const BYTE_ORDER_MARK: char = '\u{feff}';

struct CharSet {
    /// Sorted, inclusive ranges.
    ranges: Vec<(char, char)>,
    /// For each block of 256 code points, true if the set contains any of them. Most blocks have
    /// none.
    pages: Vec<bool>,
}

impl CharSet {
    /// Parses a character class in regex syntax.
    fn parse(class: &str) -> CharSet {
        let parsed = regex_syntax::parse(class).map(|hir| hir.into_kind());
        let ranges: Vec<(char, char)> = match parsed {
            Ok(HirKind::Class(Class::Unicode(class))) => {
                class.iter().map(|range| (range.start(), range.end())).collect()
            }
            // If the class cannot be parsed, treat every non-ASCII character as a member, to be
            // safe.
            _ => vec![(FIRST_INVISIBLE, char::MAX)],
        };
        let mut pages = vec![false; page(char::MAX) + 1];
        for (start, end) in &ranges {
            pages.iter_mut().take(page(*end) + 1).skip(page(*start)).for_each(|page| *page = true);
        }
        CharSet { ranges, pages }
    }

    fn contains(&self, c: char) -> bool {
        if self.pages.get(page(c)) != Some(&true) {
            return false;
        }
        let end = self.ranges.partition_point(|(start, _)| *start <= c);
        end.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|(_, end)| c <= *end)
    }
}

/// Returns the code point of `c` without its lowest byte.
fn page(c: char) -> usize {
    c as usize >> 8
}

/// Returns true if `c` is invisible: it is ignored by default, controls text direction, or is a
/// format character without a glyph.
pub fn is_invisible(c: char) -> bool {
    static SET: LazyLock<CharSet> = LazyLock::new(|| CharSet::parse(INVISIBLE));
    c >= FIRST_INVISIBLE && SET.contains(c)
}

pub fn visible(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter(|c| !is_invisible(*c)).collect())
}

/// Counts the invisible characters of `text` that do not belong to ordinary writing.
pub fn count_hidden(text: &str) -> usize {
    let mut scanner = WritingScanner::default();
    if text.is_ascii() {
        0
    } else {
        text.chars().filter(|c| scanner.classify(*c) == Visibility::Hidden).count()
    }
}

/// Scans a text and separates the invisible characters of ordinary writing from all others.
///
/// Ordinary are a leading byte order mark, and a single variation selector or joiner after a
/// visible character, as in emoji and many scripts. They cannot hide text.
#[derive(Debug, Default)]
pub struct WritingScanner(PrevChar);

#[derive(Debug, Default)]
enum PrevChar {
    #[default]
    Start,
    /// A letter, digit or symbol beyond ASCII.
    Shape,
    /// An ASCII character that can begin a keycap emoji.
    Keycap,
    /// A variation selector of ordinary writing.
    Selector,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    Visible,
    Ordinary,
    Hidden,
}

impl WritingScanner {
    pub fn classify(&mut self, c: char) -> Visibility {
        static SELECTOR: LazyLock<CharSet> = LazyLock::new(|| CharSet::parse(SELECTORS));
        static JOINER: LazyLock<CharSet> = LazyLock::new(|| CharSet::parse(JOINERS));
        if c.is_ascii() {
            self.0 = if c.is_ascii_digit() || matches!(c, '#' | '*') {
                PrevChar::Keycap
            } else {
                PrevChar::Other
            };
            return Visibility::Visible;
        }
        if !is_invisible(c) {
            self.0 =
                if c.is_whitespace() || c.is_control() { PrevChar::Other } else { PrevChar::Shape };
            return Visibility::Visible;
        }
        let previous = std::mem::replace(&mut self.0, PrevChar::Other);
        let is_ordinary = match previous {
            PrevChar::Start => c == BYTE_ORDER_MARK,
            PrevChar::Shape | PrevChar::Keycap if SELECTOR.contains(c) => {
                self.0 = PrevChar::Selector;
                true
            }
            PrevChar::Shape | PrevChar::Selector => JOINER.contains(c),
            PrevChar::Keycap | PrevChar::Other => false,
        };
        if is_ordinary { Visibility::Ordinary } else { Visibility::Hidden }
    }
}

/// Returns true if `c` is a hyphen, a dash or a minus sign.
pub fn is_dash(c: char) -> bool {
    static SET: LazyLock<CharSet> = LazyLock::new(|| CharSet::parse(DASHES));
    c == '-' || !c.is_ascii() && SET.contains(c)
}

/// Folds `text` so that texts that look alike become equal. Removes white space and invisible
/// characters, converts to lower case, and replaces each character by its prototype (NFKC, then the
/// skeleton of UTS #39).
pub fn confusable_form(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_whitespace() && !is_invisible(*c));
    let folded: String =
        shown.nfkc().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
    skeleton(&folded).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_those_of_the_tables() {
        let named = [
            0x61c, 0x200b, 0x200d, 0x2060, 0xad, 0xfff9, 0xfffb, 0x206a, 0x206f, 0xfe00, 0xfe0f,
            0xe0000, 0xe007f,
        ];
        let more = [
            0x34f, 0x115f, 0x180b, 0x200e, 0x202a, 0x202e, 0x2066, 0x3164, 0xfeff, 0xffa0, 0xe0100,
            0xe0fff,
        ];
        for code in named.into_iter().chain(more) {
            // The tables contain unassigned code points.
            assert!(char::from_u32(code).is_none_or(is_invisible), "{code:x}");
        }
        for c in (' '..='~')
            .chain("\n\té漢😀\u{a0}\u{2003}\u{301}\u{600}\u{6dd}\u{fffd}\u{10ffff}".chars())
        {
            assert!(!is_invisible(c), "{c:?}");
        }
        assert!(
            (0..FIRST_INVISIBLE as u32)
                .filter_map(char::from_u32)
                .all(|c| !CharSet::parse(INVISIBLE).contains(c))
        );
    }

    #[test]
    fn a_class_that_cannot_be_parsed_holds_everything_beyond_ascii() {
        assert!(
            CharSet::parse(r"\p{No_Such_Property}").contains('é')
                && CharSet::parse("[").contains(char::MAX)
        );
    }

    #[test]
    fn ordinary_writing_hides_nothing() {
        for text in [
            "",
            "\u{feff}a",
            "❤\u{fe0f} 1\u{fe0f}\u{20e3}",
            "👁\u{fe0f}\u{200d}🗨\u{fe0f}",
            "می\u{200c}خواهم",
            "क्\u{200d}ष",
        ] {
            assert_eq!(count_hidden(text), 0, "{text:?}");
        }
        for (text, hidden) in [
            ("a\u{200b}b", 1),
            ("a\u{200d}b", 1),
            ("a\u{fe0f}", 1),
            ("é\u{200d}\u{200d}\u{200d}", 2),
            ("❤\u{fe0f}\u{fe00}\u{fe01}", 2),
            ("x\u{feff}", 1),
            ("\u{e0041}\u{e0042}", 2),
            ("a\u{202e}b", 1),
        ] {
            assert_eq!(count_hidden(text), hidden, "{text:?}");
        }
    }

    #[test]
    fn visible_text_stays_and_invisible_characters_go() {
        assert_eq!(visible("a\u{200b}b ❤\u{fe0f}"), "ab ❤");
        assert!(matches!(visible("é漢"), Cow::Borrowed("é漢")));
    }

    #[test]
    fn texts_that_look_alike_have_equal_forms() {
        for (text, alike) in [
            ("[FA\u{200b}ILED]", "[failed]"),
            ("［ＦＡＩＬＥＤ］", "[failed]"),
            ("[FАILED]", "[failed]"),
            ("[…", "[..."),
            ("[ . . .", "[..."),
        ] {
            assert_eq!(confusable_form(text), confusable_form(alike), "{text:?}");
        }
    }
}
