//! The settings beside a vocabulary: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json` and the
//! `model_type` of `config.json`. All are optional.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_TOKENIZER_BYTES;
use serde_json::{Map, Value};

use super::error::TokenizerError;
use super::files;
use crate::export::CONFIG;

/// Settings of one model directory.
#[derive(Debug, Default)]
pub(super) struct Settings {
    path: PathBuf,
    config: Map<String, Value>,
    special_tokens: Map<String, Value>,
    added: BTreeMap<String, u32>,
    /// Architecture named by `config.json`.
    pub model_type: Option<String>,
}

impl Settings {
    /// Reads what is there.
    ///
    /// # Errors
    /// A file that is there can't be read, or is not a JSON object.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer_config.json");
        let model = object(&dir.join(CONFIG))?;
        let mut settings = Self {
            config: object(&path)?,
            path,
            special_tokens: object(&dir.join("special_tokens_map.json"))?,
            added: BTreeMap::new(),
            model_type: model.get("model_type").and_then(Value::as_str).map(str::to_owned),
        };
        settings.read_added(dir)?;
        Ok(settings)
    }

    /// Takes `added_tokens.json` (`{"[MASK]": 128000}`) and `added_tokens_decoder` (`{"128000": {"content": ..}}`).
    fn read_added(&mut self, dir: &Path) -> Result<(), TokenizerError> {
        let path = dir.join("added_tokens.json");
        for (token, id) in object(&path)? {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let Some(number) = number else { return Err(wrong(&path, &token, "a token id", &id)) };
            self.added.insert(token, number);
        }
        let Some(Value::Object(decoder)) = self.config.get("added_tokens_decoder") else { return Ok(()) };
        for (id, token) in decoder {
            let Ok(number) = id.parse::<u32>() else {
                return Err(wrong(
                    &self.path,
                    "added_tokens_decoder",
                    "an object with token ids as keys",
                    token,
                ));
            };
            if let Some(text) = token.get("content").and_then(Value::as_str) {
                self.added.entry(text.to_owned()).or_insert(number);
            }
        }
        Ok(())
    }

    /// A switch, `default` if it is not set or null.
    ///
    /// # Errors
    /// It is set to something else than true or false.
    pub fn switch(&self, key: &str, default: bool) -> Result<bool, TokenizerError> {
        match self.config.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(wrong(&self.path, key, "true or false", other)),
        }
    }

    /// The raw value of a key, for settings that pass through to the library.
    pub fn raw(&self, key: &str) -> Value {
        self.config.get(key).cloned().unwrap_or(Value::Null)
    }

    /// The text of a special token by its role (`cls_token`).
    ///
    /// # Errors
    /// It is neither a string nor an object with a `content`.
    pub fn special(&self, role: &str, default: &str) -> Result<String, TokenizerError> {
        match self.special_value(role) {
            None => Ok(default.to_owned()),
            Some(value) => match token_text(value) {
                Some(text) => Ok(text.to_owned()),
                None => Err(wrong(&self.path, role, "a string or an object with \"content\"", value)),
            },
        }
    }

    /// How a special token is matched in a text (`lstrip`, `rstrip`, ...): true only if the settings say so.
    pub fn special_flag(&self, role: &str, flag: &str) -> bool {
        self.special_value(role).and_then(|value| value.get(flag)).and_then(Value::as_bool).unwrap_or(false)
    }

    fn special_value<'a>(&'a self, role: &str) -> Option<&'a Value> {
        let set = |map: &'a Map<String, Value>| map.get(role).filter(|value| !value.is_null());
        set(&self.config).or_else(|| set(&self.special_tokens))
    }

    /// Every setting that a tokenizer built from `vocab.txt` or `vocab.json` depends on, as text.
    pub fn signature(&self) -> String {
        let keys = ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"];
        let roles = ["unk_token", "cls_token", "sep_token", "pad_token", "mask_token"];
        let setting = |key: &str| format!("{key}={}\n", self.special_value(key).unwrap_or(&Value::Null));
        keys.into_iter().chain(roles).map(setting).collect()
    }

    /// The id given to a token outside the vocabulary.
    pub fn added_id(&self, token: &str) -> Option<u32> {
        self.added.get(token).copied()
    }

    /// Tokens outside the vocabulary with their ids.
    pub fn added(&self) -> impl Iterator<Item = (&str, u32)> {
        self.added.iter().map(|(token, id)| (token.as_str(), *id))
    }
}

fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn wrong(path: &Path, key: &str, expected: &'static str, found: &Value) -> TokenizerError {
    let mut found = found.to_string();
    if found.len() > 80 {
        found = format!("{}...", found.chars().take(80).collect::<String>());
    }
    TokenizerError::Setting { path: path.to_path_buf(), key: key.to_owned(), expected, found }
}

/// Reads a JSON object, empty if the file is not there.
fn object(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    if !path.is_file() {
        return Ok(Map::new());
    }
    let bytes = files::read(path, MAX_TOKENIZER_BYTES)?;
    let value = serde_json::from_slice(&bytes)
        .map_err(|source| TokenizerError::Json { path: path.to_path_buf(), source })?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(TokenizerError::Invalid {
            path: path.to_path_buf(),
            reason: "it is not a JSON object".to_owned(),
        }),
    }
}
