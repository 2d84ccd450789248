//! Decodes the changes of files from the records of calls.

use serde::Deserialize;

use super::super::lenient::{MaybeBool, MaybeList, MaybeObject, MaybeStr, MaybeU64, object};
use super::super::transcript::{CallRecord, RawRecord, shorten_id};
use swarmletfs_base::error::{Error, Result};
use swarmletfs_base::model::{FileEdit, TextReplacement};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EditMessage<'a> {
    #[serde(borrow, rename = "toolCalls")]
    tool_calls: MaybeList<MaybeObject<EditCall<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct EditCall<'a> {
    id: MaybeStr<'a>,
    args: MaybeObject<WriteArguments<'a>>,
    #[serde(rename = "resultDisplay")]
    display: MaybeObject<DisplayedDiff<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct WriteArguments<'a> {
    file_path: MaybeStr<'a>,
    content: MaybeStr<'a>,
    old_string: MaybeStr<'a>,
    new_string: MaybeStr<'a>,
    allow_multiple: MaybeBool,
    /// Number of replacements, in older versions.
    expected_replacements: MaybeU64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct DisplayedDiff<'a> {
    #[serde(rename = "filePath")]
    path: MaybeStr<'a>,
    #[serde(rename = "originalContent")]
    before: MaybeStr<'a>,
    #[serde(rename = "newContent")]
    after: MaybeStr<'a>,
    #[serde(rename = "isNewFile")]
    is_new: MaybeBool,
}

/// Reads the change that a call made, without its number.
///
/// # Errors
///
/// Fails with [`Error::Stale`] if the records do not hold the call any more.
pub(super) fn read_edit(call: &CallRecord<'_>, result: RawRecord<'_>) -> Result<FileEdit> {
    // The record of the result repeats the call.
    let records = [result.text, call.record.text];
    records.into_iter().find_map(|text| find_edit(text, call.id)).ok_or(Error::Stale)
}

fn find_edit(text: &str, id: &str) -> Option<FileEdit> {
    let message = object::<EditMessage<'_>>(text)?;
    let mut calls = message.tool_calls.0.iter().filter_map(|call| call.0.as_ref());
    let call = calls.find(|call| shorten_id(call.id.as_str()) == id)?;
    // A torn or odd record may lack either.
    let (no_arguments, no_display) = Default::default();
    let arguments = call.args.0.as_ref().unwrap_or(&no_arguments);
    let display = call.display.0.as_ref().unwrap_or(&no_display);
    Some(file_edit(arguments, display))
}

fn file_edit(arguments: &WriteArguments<'_>, display: &DisplayedDiff<'_>) -> FileEdit {
    let path = display.path.non_empty().or_else(|| arguments.file_path.non_empty());
    let text = |text: &MaybeStr<'_>| text.0.as_deref().map(str::to_owned);
    let old = arguments.old_string.0.as_deref();
    let created = display.is_new.is_set() || old == Some("");
    let before = text(&display.before).filter(|_| !created);
    // The display holds the actual change; the arguments hold the requested one.
    let content = display.after.0.as_ref().or(arguments.content.0.as_ref());
    let edit = FileEdit { path: path.unwrap_or_default(), before, created, ..FileEdit::default() };
    if let Some(content) = content {
        return FileEdit { after: Some(content.as_ref().to_owned()), ..edit };
    }
    let replacement = TextReplacement {
        old: old.unwrap_or_default().to_owned(),
        new: arguments.new_string.as_str().to_owned(),
        all: arguments.allow_multiple.is_set()
            || arguments.expected_replacements.0.is_some_and(|count| count > 1),
        takes_line_end: false,
    };
    FileEdit { replacements: vec![replacement], ..edit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_without_arguments_has_the_edit_that_is_displayed() {
        let display = r#"{"filePath": "/w/a", "originalContent": "a\n", "newContent": "b\n"}"#;
        let call = format!(r#"{{"id": "2", "resultDisplay": {display}}}"#);
        let edit = find_edit(&format!(r#"{{"toolCalls": [{call}]}}"#), "2").unwrap();
        assert_eq!((&*edit.path, edit.after.as_deref()), ("/w/a", Some("b\n")));
        let edit = find_edit(r#"{"toolCalls": [{"id": "2"}]}"#, "2").unwrap();
        assert_eq!((&*edit.path, edit.after), ("", None));
        assert_eq!(find_edit(r#"{"toolCalls": [{"id": "3"}]}"#, "2"), None);
    }
}
