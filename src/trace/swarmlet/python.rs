//! Parses Python literals, as printed by `repr()`, for the fields that decide a call's outcome.
//!
//! Accepts the input of CPython's `ast.literal_eval`, and also `inf` and `nan`, which `repr()`
//! writes but `literal_eval` refuses. Makes one pass over the tokens, without recursion. Every
//! token has at least one byte and is visited once, open brackets are limited, and only the fields
//! that outcomes need are kept.

use logos::{Lexer, Logos};

use super::literal::{Literal, OutcomeFields};

/// Maximum number of open brackets, as in CPython.
const DEPTH_MAX: usize = 200;
/// Maximum length of the kept beginning of a string, in bytes. All field names are shorter.
const HEAD_MAX: usize = 16;
/// Number of digits of an escape, by its letter.
const ESCAPE_DIGITS: [(u8, usize); 3] = [(b'x', 2), (b'u', 4), (b'U', 8)];

/// Parses a dictionary. Returns `None` if `text` is something else.
pub(super) fn dictionary(text: &[u8]) -> Option<Literal> {
    parse(text, HEAD_MAX, &mut |_, _| {})
}

/// Parses a dictionary and calls `on_string` with each string value, in order, and the keys above
/// it, innermost last. Returns `None` if `text` is not a dictionary; strings before the error were
/// passed on.
pub(crate) fn strings(text: &[u8], on_string: &mut dyn FnMut(&[&str], &str)) -> Option<()> {
    parse(text, usize::MAX, on_string).map(drop)
}

/// Parses a dictionary and keeps at most `head` bytes of each string. Calls `on_string` as
/// [`strings`] does.
fn parse(text: &[u8], head: usize, on_string: &mut dyn FnMut(&[&str], &str)) -> Option<Literal> {
    // CPython refuses a NUL anywhere, even in a comment.
    let text = std::str::from_utf8(text).ok().filter(|_| memchr::memchr(0, text).is_none())?;
    let mut parser = Parser { frames: Vec::new(), result: None, steps_left: text.len(), on_string };
    for token in Lexeme::lexer_with_extras(text, head) {
        parser.steps_left = parser.steps_left.checked_sub(1)?;
        parser.push_token(token.ok()?)?;
    }
    parser.result
}

#[derive(Debug, Logos)]
#[logos(extras = usize)]
#[logos(skip r"[ \t\x0c\r\n]+")]
#[logos(skip(r"#[^\r\n]*", allow_greedy = true))]
#[logos(skip r"\\(?:\r\n|\r|\n)")]
#[logos(subpattern digits = r"[0-9](?:_?[0-9])*")]
#[logos(subpattern exponent = r"[eE][+-]?(?&digits)")]
#[logos(subpattern float = r"(?:(?&digits)?\.(?&digits)|(?&digits)\.)(?&exponent)?|(?&digits)(?&exponent)")]
enum Lexeme {
    #[token("(", |_| Bracket::Round)]
    #[token("[", |_| Bracket::Square)]
    #[token("{", |_| Bracket::Curly)]
    Open(Bracket),
    #[token(")", |_| Bracket::Round)]
    #[token("]", |_| Bracket::Square)]
    #[token("}", |_| Bracket::Curly)]
    Close(Bracket),
    #[token(",")]
    Comma,
    #[token(":")]
    Colon,
    /// A sign; true for minus.
    #[token("+", |_| false)]
    #[token("-", |_| true)]
    Sign(bool),
    #[token("None", |_| Literal::Null)]
    #[token("True", |_| Literal::Bool(true))]
    #[token("False", |_| Literal::Bool(false))]
    #[token("...", |_| Literal::Truthy(true))]
    Constant(Literal),
    /// `set()`, the only call that is a literal.
    #[regex(r"set[ \t\x0c\r\n]*\([ \t\x0c\r\n]*\)")]
    EmptySet,
    #[regex(r"0(?:_?0)*|[1-9](?:_?[0-9])*", |lex| parse_decimal(lex.slice()))]
    #[regex(r"0[xX](?:_?[0-9a-fA-F])+", |lex| parse_prefixed(lex.slice(), 16))]
    #[regex(r"0[oO](?:_?[0-7])+", |lex| parse_prefixed(lex.slice(), 8))]
    #[regex(r"0[bB](?:_?[01])+", |lex| parse_prefixed(lex.slice(), 2))]
    #[regex(r"(?&float)", |lex| parse_decimal(lex.slice()))]
    #[token("inf", |_| f64::INFINITY)]
    #[token("nan", |_| f64::NAN)]
    Real(f64),
    #[regex(r"(?:(?&digits)|(?&float)|inf|nan)[jJ]", |lex| parse_decimal(lex.slice().trim_end_matches(['j', 'J'])))]
    Imaginary(f64),
    #[regex(r#"(?:[rRuUbB]|[bB][rR]|[rR][bB])?(?:'''|"""|'|")"#, lex_string)]
    Str(StringLiteral),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Round,
    Square,
    Curly,
}

/// Parses a decimal number. One that is too large is infinite, so it is neither 0 nor an exit code.
fn parse_decimal(digits: &str) -> Option<f64> {
    if digits.contains('_') { digits.replace('_', "").parse().ok() } else { digits.parse().ok() }
}

/// Parses an integer to base `radix` after a prefix, such as `0x1f`.
fn parse_prefixed(text: &str, radix: u32) -> Option<f64> {
    let digits = text.get(2..)?.replace('_', "");
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    is_number
        .then(|| u64::from_str_radix(&digits, radix).map_or(f64::INFINITY, |number| number as f64))
}

/// A string, or several adjacent ones.
#[derive(Debug, Default)]
struct StringLiteral {
    is_bytes: bool,
    is_empty: bool,
    /// The beginning of the string's value, at most `head_max` bytes and one character.
    head: String,
    head_max: usize,
    /// True if an adjacent string belongs to it.
    is_joinable: bool,
}

impl StringLiteral {
    fn push(&mut self, c: char) {
        self.is_empty = false;
        if self.head.len() <= self.head_max {
            self.head.push(c);
        }
    }

    /// Appends the adjacent string. Returns `None` if the two cannot be joined.
    fn join(mut self, next: &StringLiteral) -> Option<StringLiteral> {
        if !self.is_joinable || self.is_bytes != next.is_bytes {
            return None;
        }
        next.head.chars().for_each(|c| self.push(c));
        self.is_empty &= next.is_empty;
        Some(self)
    }
}

/// Reads the rest of a string after its prefix and opening quotes. Returns `None` if it is
/// unterminated or holds an escape that Python refuses.
fn lex_string(lexer: &mut Lexer<'_, Lexeme>) -> Option<StringLiteral> {
    let prefix = lexer.slice().trim_end_matches(['\'', '"']);
    let quotes = lexer.slice().get(prefix.len()..)?.as_bytes();
    let (is_raw, is_bytes) = (prefix.contains(['r', 'R']), prefix.contains(['b', 'B']));
    let rest = lexer.remainder();
    let length = body_length(rest.as_bytes(), quotes)?;
    let body = rest.get(..length)?;
    lexer.bump(length + quotes.len());
    if is_bytes && !body.is_ascii() {
        return None;
    }
    let head_max = lexer.extras;
    let mut text = StringLiteral {
        is_bytes,
        is_empty: true,
        head: String::new(),
        head_max,
        is_joinable: true,
    };
    let mut rest = body;
    while !rest.is_empty() {
        let plain = if is_raw {
            rest.len()
        } else {
            memchr::memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len())
        };
        let (plain, after) = rest.split_at_checked(plain)?;
        text.is_empty &= plain.is_empty();
        plain.chars().take(head_max).for_each(|c| text.push(c));
        rest = match after.strip_prefix('\\') {
            Some(escape) => unescape(escape, &mut text)?,
            None => after,
        };
    }
    Some(text)
}

/// Returns the length of a string's body before the closing quotes, in bytes.
fn body_length(rest: &[u8], quotes: &[u8]) -> Option<usize> {
    let quote = *quotes.first()?;
    let mut at = 0;
    loop {
        at += rest
            .get(at..)?
            .iter()
            .position(|byte| *byte == quote || matches!(byte, b'\\' | b'\r' | b'\n'))?;
        let here = rest.get(at..)?;
        match here {
            [b'\\', b'\r', b'\n', ..] => at += 3,
            [b'\\', ..] => at += 2,
            _ if here.starts_with(quotes) => return Some(at),
            [b'\r' | b'\n', ..] if quotes.len() == 1 => return None,
            _ => at += 1,
        }
    }
}

/// Decodes an escape after its backslash, and returns the text that follows it.
fn unescape<'a>(escape: &'a str, text: &mut StringLiteral) -> Option<&'a str> {
    let first = escape.chars().next()?;
    let rest = escape.get(first.len_utf8()..)?;
    match first {
        '\r' => return Some(rest.strip_prefix('\n').unwrap_or(rest)),
        '\n' => return Some(rest),
        '0'..='7' => {
            let digits =
                escape.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            let code = u32::from_str_radix(escape.get(..digits)?, 8).ok()?;
            text.push(char::from_u32(code)?);
            return escape.get(digits..);
        }
        'N' if !text.is_bytes => {
            // Character names are not resolved; no field name contains one.
            let (name, after) = rest.strip_prefix('{')?.split_once('}')?;
            text.push(char::REPLACEMENT_CHARACTER);
            return (!name.is_empty()).then_some(after);
        }
        _ => {}
    }
    let digits = ESCAPE_DIGITS.iter().find(|(letter, _)| char::from(*letter) == first);
    if let Some((_, digits)) = digits.filter(|(letter, _)| !text.is_bytes || *letter == b'x') {
        let code =
            rest.get(..*digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let code =
            u32::from_str_radix(code, 16).ok().filter(|code| *code <= u32::from(char::MAX))?;
        // Python keeps a lone surrogate as a character of its own.
        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        return rest.get(*digits..);
    }
    let c = match first {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => first,
        other => {
            text.push('\\');
            other
        }
    };
    text.push(c);
    Some(rest)
}

/// A complete value.
struct Parsed {
    literal: Literal,
    kind: ValueKind,
}

/// The syntactic role of a value: what may follow it, and where it may stand.
enum ValueKind {
    /// A number without a sign, which may follow one.
    Real,
    Imaginary,
    /// A number with its sign, which may start a complex number.
    Signed,
    Text(StringLiteral),
    /// Any other value that may be a key.
    Hashable,
    Unhashable,
}

impl Parsed {
    fn new(literal: Literal, kind: ValueKind) -> Parsed {
        Parsed { literal, kind }
    }

    fn is_hashable(&self) -> bool {
        !matches!(self.kind, ValueKind::Unhashable)
    }
}

/// The input read so far where a value is expected.
enum Slot {
    Empty,
    /// A sign; true for minus.
    Sign(bool),
    Value(Parsed),
    /// The first part of a complex number and the following sign; true if the part is not 0.
    Sum(bool),
}

impl Slot {
    /// Appends a value. Returns `None` if it cannot follow.
    fn put(self, value: Parsed) -> Option<Slot> {
        let value = match (self, value) {
            (Slot::Empty, value) => value,
            (
                Slot::Sign(minus),
                Parsed { literal: Literal::Number(number), kind: ValueKind::Real },
            ) => Parsed::new(
                Literal::Number(if minus { -number } else { number }),
                ValueKind::Signed,
            ),
            (Slot::Sign(_), Parsed { literal, kind: ValueKind::Imaginary }) => {
                Parsed::new(literal, ValueKind::Hashable)
            }
            (Slot::Sum(any), Parsed { literal, kind: ValueKind::Imaginary }) => {
                Parsed::new(Literal::Truthy(any || !literal.is_falsy()), ValueKind::Hashable)
            }
            (
                Slot::Value(Parsed { kind: ValueKind::Text(first), .. }),
                Parsed { kind: ValueKind::Text(next), .. },
            ) => {
                let text = first.join(&next)?;
                Parsed::new(Literal::Truthy(!text.is_empty), ValueKind::Text(text))
            }
            _ => return None,
        };
        Some(Slot::Value(value))
    }
}

/// An open bracket.
struct OpenContainer {
    bracket: Bracket,
    slot: Slot,
    /// True if the bracket contains a complete value.
    any: bool,
    has_comma: bool,
    /// True if all values in it are hashable.
    hashable: bool,
    is_dict: bool,
    /// The key whose value is expected.
    key: Option<String>,
    /// The fields that are kept, if any.
    fields: Option<OutcomeFields>,
}

impl OpenContainer {
    fn new(bracket: Bracket, keeps: bool) -> OpenContainer {
        OpenContainer {
            bracket,
            slot: Slot::Empty,
            any: false,
            has_comma: false,
            hashable: true,
            is_dict: false,
            key: None,
            fields: keeps.then(OutcomeFields::default),
        }
    }

    fn value(&mut self) -> Option<Parsed> {
        match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Ends a value inside the bracket.
    fn end_value(&mut self) -> Option<()> {
        let value = self.value()?;
        match self.bracket {
            Bracket::Curly if self.is_dict => {
                let key = self.key.take()?;
                if let Some(slot) = self.fields.as_mut().and_then(|fields| fields.slot(&key)) {
                    *slot = Some(Box::new(value.literal));
                }
            }
            Bracket::Curly if !value.is_hashable() => return None,
            _ => self.hashable &= value.is_hashable(),
        }
        self.any = true;
        Some(())
    }

    /// Ends a key.
    fn end_key(&mut self) -> Option<()> {
        let may_be_dict = self.bracket == Bracket::Curly && (self.is_dict || !self.any);
        if !may_be_dict || self.key.is_some() {
            return None;
        }
        let value = self.value().filter(Parsed::is_hashable)?;
        self.is_dict = true;
        self.key = Some(match value.kind {
            ValueKind::Text(text) if !text.is_bytes => text.head,
            _ => String::new(),
        });
        Some(())
    }

    /// Closes the bracket and returns its value.
    fn end(mut self) -> Option<Parsed> {
        let is_pending = !matches!(self.slot, Slot::Empty);
        if self.bracket == Bracket::Round && !self.has_comma && is_pending {
            let mut value = self.value()?;
            if let ValueKind::Text(text) = &mut value.kind {
                text.is_joinable = false;
            }
            return Some(value);
        }
        if is_pending {
            self.end_value()?;
        }
        if self.key.is_some() {
            return None;
        }
        Some(match self.bracket {
            Bracket::Round => {
                let kind = if self.hashable { ValueKind::Hashable } else { ValueKind::Unhashable };
                Parsed::new(Literal::Truthy(self.any), kind)
            }
            Bracket::Curly if self.is_dict || !self.any => {
                let fields =
                    OutcomeFields { is_non_empty: self.any, ..self.fields.unwrap_or_default() };
                Parsed::new(Literal::Object(fields), ValueKind::Unhashable)
            }
            Bracket::Square | Bracket::Curly => {
                Parsed::new(Literal::Truthy(self.any), ValueKind::Unhashable)
            }
        })
    }
}

/// A parser that receives one token at a time.
struct Parser<'a> {
    frames: Vec<OpenContainer>,
    /// The dictionary, once complete.
    result: Option<Literal>,
    /// Number of tokens that may still be read: at most one per byte, so that time stays
    /// proportional to the text.
    steps_left: usize,
    /// Callback for each string value and the keys above it.
    on_string: &'a mut dyn FnMut(&[&str], &str),
}

impl Parser<'_> {
    /// Adds a token. Returns `None` if it is not allowed here.
    fn push_token(&mut self, token: Lexeme) -> Option<()> {
        match token {
            Lexeme::Open(bracket) => self.open(bracket),
            Lexeme::Close(bracket) => self.close(bracket),
            Lexeme::Comma => {
                self.emit_string();
                let frame = self.frames.last_mut()?;
                frame.end_value()?;
                frame.has_comma = true;
                Some(())
            }
            Lexeme::Colon => self.frames.last_mut()?.end_key(),
            Lexeme::Sign(minus) => {
                let slot = &mut self.frames.last_mut()?.slot;
                *slot = match slot {
                    Slot::Empty => Slot::Sign(minus),
                    Slot::Value(Parsed { literal, kind: ValueKind::Real | ValueKind::Signed }) => {
                        Slot::Sum(!literal.is_falsy())
                    }
                    _ => return None,
                };
                Some(())
            }
            Lexeme::Constant(literal) => self.put(Parsed::new(literal, ValueKind::Hashable)),
            Lexeme::EmptySet => {
                self.put(Parsed::new(Literal::Truthy(false), ValueKind::Unhashable))
            }
            Lexeme::Real(number) => self.put(Parsed::new(Literal::Number(number), ValueKind::Real)),
            Lexeme::Imaginary(number) => {
                self.put(Parsed::new(Literal::Truthy(number != 0.0), ValueKind::Imaginary))
            }
            Lexeme::Str(text) => {
                self.put(Parsed::new(Literal::Truthy(!text.is_empty), ValueKind::Text(text)))
            }
        }
    }

    /// Passes a string value that ends here to `on_string`.
    fn emit_string(&mut self) {
        let Some(frame) = self.frames.last() else { return };
        if let Slot::Value(Parsed { kind: ValueKind::Text(text), .. }) = &frame.slot
            && !text.is_bytes
        {
            let keys: Vec<&str> =
                self.frames.iter().filter_map(|frame| frame.key.as_deref()).collect();
            (self.on_string)(&keys, &text.head);
        }
    }

    fn put(&mut self, value: Parsed) -> Option<()> {
        let slot = &mut self.frames.last_mut()?.slot;
        *slot = std::mem::replace(slot, Slot::Empty).put(value)?;
        Some(())
    }

    fn open(&mut self, bracket: Bracket) -> Option<()> {
        let keeps = match self.frames.last() {
            None => self.result.is_none() && bracket == Bracket::Curly,
            Some(frame) => {
                let may_open = match frame.slot {
                    Slot::Empty => true,
                    Slot::Sign(_) | Slot::Sum(_) => bracket == Bracket::Round,
                    Slot::Value(_) => false,
                };
                if !may_open {
                    return None;
                }
                // Only the fields of the dictionary and of its `data` are kept, even inside
                // parentheses.
                let is_data = self.frames.len() == 1 && frame.key.as_deref() == Some("data");
                is_data || frame.bracket == Bracket::Round && frame.fields.is_some()
            }
        };
        if self.frames.len() >= DEPTH_MAX || self.frames.is_empty() && !keeps {
            return None;
        }
        self.frames.push(OpenContainer::new(bracket, keeps));
        Some(())
    }

    fn close(&mut self, bracket: Bracket) -> Option<()> {
        // A string in parentheses without a comma belongs to the enclosing bracket.
        if self
            .frames
            .last()
            .is_some_and(|frame| frame.bracket != Bracket::Round || frame.has_comma)
        {
            self.emit_string();
        }
        let frame = self.frames.pop().filter(|frame| frame.bracket == bracket)?;
        let value = frame.end()?;
        if !self.frames.is_empty() {
            return self.put(value);
        }
        self.result = Some(value.literal).filter(|literal| matches!(literal, Literal::Object(_)));
        self.result.is_some().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_dictionary(text: &str) -> bool {
        dictionary(text.as_bytes()).is_some()
    }

    #[test]
    fn strings_are_reported_with_the_keys_above_them() {
        let mut found = Vec::new();
        let text = r#"{'a': 'it\'s', 'b': ['x' 'y', b'z', ('w')], 'c': {'error': ("v",), 1: 'u'}, 't': 0}"#;
        strings(text.as_bytes(), &mut |keys, text| found.push((keys.join("."), text.to_owned())))
            .unwrap();
        let wanted = [("a", "it's"), ("b", "xy"), ("b", "w"), ("c.error", "v"), ("c.", "u")];
        assert_eq!(found, wanted.map(|(keys, text)| (keys.to_owned(), text.to_owned())));
        assert_eq!(strings(b"['a']", &mut |_, _| panic!("a list")), None);
    }

    #[test]
    fn every_kind_of_literal_is_read() {
        for value in [
            "None",
            "True",
            "False",
            "...",
            "set()",
            "set ( )",
            "0",
            "00",
            "1_000",
            "0x_Ff",
            "0O17",
            "0b1",
            "1.",
            ".5",
            "1e5",
            "1_0.0_1e-1_0",
            "1e999",
            "inf",
            "-inf",
            "nan",
            "1j",
            "012j",
            "-1.5J",
            "1+2j",
            "-1-2j",
            "(1+2j)",
            "(-0-1j)",
            "(nan+infj)",
            "1+(2j)",
            "(-1)+2j",
            "-(1)",
            "+1",
            "''",
            "\"\"",
            "''''''",
            "'''a'b\n\"\"'''",
            "\"\"\"'\"\"\"",
            "r'\\'",
            "r'\\d'",
            "u'x'",
            "b'x'",
            "Rb'x'",
            "bR\"x\"",
            "'a' \"b\" 'c'",
            "b'a' b'b'",
            "('a'\n 'b')",
            "'\\x41\\u0041\\U00010ffff\\N{BULLET}\\777\\q\\\n'",
            "b'\\xff\\N\\u1'",
            "()",
            "(1,)",
            "((1))",
            "(1, 2,)",
            "[]",
            "[1, [2], ]",
            "{1, 'a', (2, 3)}",
            "{}",
            "{1: {2: {}}, (): 0, 1j: 0,}",
            "1 # }\n",
        ] {
            let (value, text) = (value.replace("r'\\'", "r'\\\\'"), value);
            assert!(is_dictionary(&format!("{{'a': {value}}}")), "{text}");
            assert!(
                is_dictionary(&format!("{{'a': [{value}, {value}\\\n]\r\n, }} # end")),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_literals_are_rejected() {
        for value in [
            "",
            "nope",
            "none",
            "Nonesuch",
            "True1",
            "set",
            "set(1)",
            "f'a'",
            "ur'a'",
            "1 2",
            "01",
            "1_",
            "1__0",
            "0x",
            "1e",
            "--1",
            "+-1",
            "-True",
            "-'a'",
            "-(1+2j)",
            "1+2",
            "1j+2j",
            "1+-2j",
            "1+2j+3j",
            "'a",
            "'a\nb'",
            "'''a''",
            "'\\x4'",
            "'\\u004'",
            "'\\U00110000'",
            "'\\N{}'",
            "'\\N'",
            "b'é'",
            "'a' b'b'",
            "('a') 'b'",
            "(,)",
            "[,]",
            "[1 2]",
            "[1,,2]",
            "[1}",
            "[1",
            "1]",
            "{1, 2: 3}",
            "{1: 2, 3}",
            "{[1]: 2}",
            "{1, []}",
            "{([],): 1}",
            "{1:}",
            "{:1}",
            "*[]",
            "**{}",
            "x.y",
            "[].pop",
            "'a'[0]",
            "<object at 0x1>",
            "'\0'",
            "1 if 1 else 2",
            "(1, 2: 3)",
        ] {
            assert!(!is_dictionary(&format!("{{'a': {value}}}")), "{value:?}");
        }
        for text in [
            "",
            "1",
            "[]",
            "{1}",
            "{'a': 1} x",
            "{'a': 1}, 2",
            "{'a': 1}['a']",
            "({'a': 1})",
            "{",
            "}",
            "{}}",
        ] {
            assert!(!is_dictionary(text), "{text:?}");
        }
    }

    #[test]
    fn brackets_nest_as_deep_as_in_cpython() {
        let nested = |n: usize| format!("{{'a': {}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(is_dictionary(&nested(DEPTH_MAX - 1)));
        assert!(!is_dictionary(&nested(DEPTH_MAX)));
    }

    #[test]
    fn fields_are_found_however_their_names_are_written() {
        for key in [
            "'ok'",
            "\"ok\"",
            "'''ok'''",
            "'o' 'k'",
            "('ok')",
            "'\\x6f\\153'",
            "r'ok'",
            "'o\\\nk'",
            "u'ok'",
        ] {
            let Some(Literal::Object(fields)) = dictionary(format!("{{{key}: 7}}").as_bytes())
            else {
                panic!("{key} is no key");
            };
            assert_eq!(fields.ok.as_deref(), Some(&Literal::Number(7.0)), "{key}");
        }
        for key in ["b'ok'", "'ok '", "'OK'", "'ok\\0'", "('ok',)", "'ok' 'ok'"] {
            let Some(Literal::Object(fields)) = dictionary(format!("{{{key}: 7}}").as_bytes())
            else {
                panic!("{key} is no key");
            };
            assert_eq!(fields.ok, None, "{key}");
        }
    }

    #[test]
    fn fields_of_data_are_found_within_parentheses() {
        let exit_code = |text: &str| {
            let Some(Literal::Object(fields)) = dictionary(text.as_bytes()) else {
                panic!("{text}")
            };
            match fields.data.as_deref() {
                Some(Literal::Object(data)) => {
                    data.exit_code.as_deref().and_then(Literal::as_integer)
                }
                _ => None,
            }
        };
        assert_eq!(exit_code("{'data': {'exit_code': 3}}"), Some(3));
        assert_eq!(exit_code("{('data'): (({'exit_code': (3)}))}"), Some(3));
        for text in [
            "{'data': ({'exit_code': 3},)}",
            "{'data': [{'exit_code': 3}]}",
            "{'a': {'data': {'exit_code': 3}}}",
        ] {
            assert_eq!(exit_code(text), None, "{text}");
        }
    }

    #[test]
    fn no_more_steps_are_taken_than_there_are_bytes() {
        let steps = |text: &str| Lexeme::lexer(text).take_while(Result::is_ok).count();
        for part in [
            "{'a':", "[", "(", "'", "'''", "1_", "1+", "1.", "set", "set(", "\\\n", "# ", " ",
            "r'\\'", "0x", "-",
        ] {
            let text = part.repeat(10_000);
            assert!(steps(&text) <= text.len(), "{part:?}");
        }
    }
}
