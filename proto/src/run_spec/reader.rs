//! Typed access to the values of a run file, collecting every problem instead of stopping at the first.
//!
//! A getter returns `None` both for an absent key and for one with a wrong value; a wrong value has been noted as
//! a problem by then, so the caller fills in its default and goes on.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem};
use super::schema;
use crate::nearest;

/// The largest whole number of TOML: "no upper bound" for [`Reader::whole`].
pub(super) const UNBOUNDED: u64 = i64::MAX as u64;

/// A value and where it was written.
struct Entry<'a> {
    value: &'a DeValue<'a>,
    place: Place,
}

/// The values of a run file by dotted key.
pub(super) struct Reader<'a> {
    text: &'a str,
    entries: BTreeMap<String, Entry<'a>>,
    sections: BTreeMap<String, Place>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    /// Flattens the tables of a document; unknown keys and sections become problems.
    pub(super) fn new(text: &'a str, document: &'a DeTable<'a>) -> Self {
        let mut reader =
            Self { text, entries: BTreeMap::new(), sections: BTreeMap::new(), problems: Vec::new() };
        for (key, value) in document.iter() {
            let place = place_at(text, key.span().start);
            match value.get_ref() {
                DeValue::Table(table) if schema::SECTIONS.contains(&key.get_ref().as_ref()) => {
                    let section = key.get_ref().to_string();
                    reader.add_section(&section, table);
                    reader.sections.insert(section, place);
                }
                DeValue::Table(_) => reader.unknown_section(key.get_ref(), place),
                _ => reader.add(key.get_ref().to_string(), value, place),
            }
        }
        reader
    }

    fn add_section(&mut self, section: &str, table: &'a DeTable<'a>) {
        for (key, value) in table.iter() {
            let place = place_at(self.text, key.span().start);
            self.add(format!("{section}.{}", key.get_ref()), value, place);
        }
    }

    fn add(&mut self, key: String, value: &'a Spanned<DeValue<'a>>, place: Place) {
        if schema::SECTIONS.contains(&key.as_str()) {
            self.note(place, &key, format!("must be a table: [{key}]"));
            self.sections.insert(key, Place::File { line: 1, column: 1 });
        } else if schema::find(&key).is_none() {
            self.unknown_key(&key, place);
        } else {
            self.entries.insert(key, Entry { value: value.get_ref(), place });
        }
    }

    /// Puts an override's value in place of the file's.
    pub(super) fn set(&mut self, key: &str, value: &'a DeValue<'a>, text: &str) {
        let place = Place::Override(text.to_owned());
        if schema::find(key).is_none() {
            self.unknown_key(key, place);
        } else {
            self.entries.insert(key.to_owned(), Entry { value, place });
        }
    }

    fn unknown_key(&mut self, key: &str, place: Place) {
        let message = match schema::nearest_key(key) {
            Some(near) => format!("is not a key of a run file; did you mean `{near}`?"),
            None => "is not a key of a run file".to_owned(),
        };
        self.note(place, key, message);
    }

    fn unknown_section(&mut self, section: &str, place: Place) {
        if schema::find(section).is_some() {
            return self.note(place, section, "is a single value, not a table".into());
        }
        let message = match nearest(section, schema::SECTIONS.iter().copied()) {
            Some(near) => format!("is not a section of a run file; did you mean [{near}]?"),
            None => format!("is not a section of a run file; sections are {}", schema::SECTIONS.join(", ")),
        };
        self.note(place, section, message);
    }

    /// Notes a problem at a known place.
    pub(super) fn note(&mut self, place: Place, key: &str, message: String) {
        self.problems.push(Problem { place, key: key.to_owned(), message });
    }

    /// Notes a problem where the key is written, or else at its section's head.
    pub(super) fn problem(&mut self, key: &str, message: impl Into<String>) {
        let section = key.split('.').next().unwrap_or(key);
        let place = self.entries.get(key).map(|e| &e.place).or_else(|| self.sections.get(section));
        let place = place.cloned().unwrap_or(Place::File { line: 1, column: 1 });
        self.note(place, key, message.into());
    }

    /// Tells whether the key is written, rightly or wrongly.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Tells whether the key comes from a `--set` override.
    pub(super) fn is_override(&self, key: &str) -> bool {
        matches!(self.entries.get(key), Some(Entry { place: Place::Override(_), .. }))
    }

    /// All problems, in order of their place.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort();
        self.problems.dedup();
        self.problems
    }

    fn value(&self, key: &str) -> Option<&'a DeValue<'a>> {
        debug_assert!(schema::find(key).is_some(), "{key} is missing in the table of keys");
        self.entries.get(key).map(|e| e.value)
    }

    fn wrong(&mut self, key: &str, expected: &str, found: &DeValue<'_>) {
        self.problem(key, format!("must be {expected}, not {}", describe(found)));
    }

    /// A text.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        let value = self.value(key)?;
        match value {
            DeValue::String(s) if s.trim().is_empty() => {
                self.problem(key, "must not be empty");
                None
            }
            DeValue::String(s) => Some(s.to_string()),
            other => {
                self.wrong(key, "a text in quotes", other);
                None
            }
        }
    }

    /// A text or a list of texts; never an empty list.
    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        let DeValue::Array(items) = self.value(key)? else {
            return self.text(key).map(|one| vec![one]);
        };
        if items.is_empty() {
            self.problem(key, "must not be an empty list");
            return None;
        }
        let mut texts = Vec::with_capacity(items.len());
        for (idx, item) in items.iter().enumerate() {
            match item.get_ref() {
                DeValue::String(s) if !s.trim().is_empty() => texts.push(s.to_string()),
                other => {
                    let found = describe(other);
                    self.problem(key, format!("must hold texts; item {} is {found}", idx + 1));
                    return None;
                }
            }
        }
        Some(texts)
    }

    /// A number, whole or not; always finite.
    pub(super) fn number(&mut self, key: &str) -> Option<f64> {
        let value = self.value(key)?;
        let number = match value {
            DeValue::Float(f) => f.as_str().parse::<f64>().ok(),
            DeValue::Integer(i) => i128::from_str_radix(i.as_str(), i.radix()).ok().map(|i| i as f64),
            _ => None,
        };
        let finite = number.filter(|n| n.is_finite());
        if finite.is_none() {
            self.wrong(key, "a finite number", value);
        }
        finite
    }

    /// A whole number within bounds, both included.
    pub(super) fn whole(&mut self, key: &str, least: u64, most: u64) -> Option<u64> {
        let value = self.value(key)?;
        let found = match value {
            DeValue::Integer(i) => i128::from_str_radix(i.as_str(), i.radix()).ok(),
            _ => None,
        };
        let Some(found) = found else {
            self.wrong(key, "a whole number", value);
            return None;
        };
        if found < i128::from(least) || found > i128::from(most) {
            let range = match most {
                UNBOUNDED => format!("at least {least}"),
                _ => format!("from {least} to {most}"),
            };
            self.problem(key, format!("must be {range}, not {found}"));
            return None;
        }
        u64::try_from(found).ok()
    }

    /// One of a list of names.
    pub(super) fn choice<T: for<'de> Deserialize<'de>>(&mut self, key: &str, names: &[&str]) -> Option<T> {
        let value = self.value(key)?;
        let DeValue::String(name) = value else {
            self.wrong(key, &one_of(names), value);
            return None;
        };
        let parsed: Result<T, serde::de::value::Error> = T::deserialize(name.as_ref().into_deserializer());
        if parsed.is_err() {
            let near = nearest(name, names.iter().copied());
            let near = near.map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
            self.problem(key, format!("must be {}, not \"{name}\"{near}", one_of(names)));
        }
        parsed.ok()
    }

    /// `"auto"` (`Some(None)`) or a whole number of at least 1.
    pub(super) fn auto_or_whole(&mut self, key: &str, most: u64) -> Option<Option<u64>> {
        match self.value(key)? {
            DeValue::String(s) if s == "auto" => Some(None),
            DeValue::Integer(_) => self.whole(key, 1, most).map(Some),
            other => {
                self.wrong(key, "\"auto\" or a whole number", other);
                None
            }
        }
    }

    /// The choice that a valid text names, without noting anything.
    pub(super) fn text_choice<T: for<'de> Deserialize<'de>>(&self, key: &str) -> Option<T> {
        let parsed: Result<T, serde::de::value::Error> =
            T::deserialize(self.as_text(key)?.into_deserializer());
        parsed.ok()
    }

    /// The text of a string value, whatever it is, for keys that also take numbers.
    pub(super) fn as_text(&self, key: &str) -> Option<&'a str> {
        self.value(key)?.as_str()
    }
}

fn one_of(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|n| format!("\"{n}\"")).collect();
    format!("one of {}", quoted.join(", "))
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) if s.trim().is_empty() => "an empty text".into(),
        DeValue::String(s) => format!("the text \"{}\"", s.chars().take(40).collect::<String>()),
        DeValue::Integer(i) => format!("the number {i}"),
        DeValue::Float(x) => format!("the number {x}"),
        DeValue::Boolean(b) => format!("{b}"),
        DeValue::Datetime(d) => format!("the date {d}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// Line and character of a byte of the file, both from 1.
pub(super) fn place_at(text: &str, byte: usize) -> Place {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    Place::File { line, column }
}
