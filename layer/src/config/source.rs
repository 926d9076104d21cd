//! The settings' values: the environment's variables, and the entries of the JSON file.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use super::{PREFIX, table};

/// The folder of the function's package if `LAMBDA_TASK_ROOT` isn't set. Lambda doesn't set that variable for
/// extensions.
const TASK_ROOT: &str = "/var/task";

/// The settings' values, and where each comes from, for error messages.
pub(super) struct Values<'e> {
    environment: &'e dyn Fn(&str) -> Option<String>,
    file: BTreeMap<String, String>,
    path: Option<PathBuf>,
}

/// The path of a file in the function's package.
pub(super) fn in_package(environment: &dyn Fn(&str) -> Option<String>, path: &str) -> PathBuf {
    let root = environment("LAMBDA_TASK_ROOT").unwrap_or_else(|| TASK_ROOT.to_owned());
    PathBuf::from(root).join(path)
}

impl<'e> Values<'e> {
    /// Checks the variables' names, and reads the settings file if there's one.
    ///
    /// # Errors
    ///
    /// A sentence that names the variable or the file, and says what's wrong with it.
    pub(super) fn of(
        names: impl Iterator<Item = String>,
        environment: &'e dyn Fn(&str) -> Option<String>,
        file: impl FnOnce(&PathBuf) -> std::io::Result<String>,
    ) -> Result<Self, String> {
        for variable in names {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if table::named(name).is_none() {
                return Err(table::unknown(&variable, name));
            }
        }
        let path = environment("IDEMPOTENCY_CONFIG").filter(|path| !path.is_empty());
        let Some(path) = path else { return Ok(Self { environment, file: BTreeMap::new(), path: None }) };
        let path = in_package(environment, &path);
        let text = file(&path)
            .map_err(|error| format!("IDEMPOTENCY_CONFIG: {} can't be read: {error}", path.display()))?;
        let file = in_file(&text).map_err(|problem| format!("{}: {problem}", path.display()))?;
        let values = Self { environment, file, path: Some(path) };
        for name in values.file.keys() {
            let variable = format!("{PREFIX}{name}");
            if environment(&variable).is_some_and(|value| !value.is_empty()) {
                return Err(format!("{variable} is set, and so is {}; keep one", values.shown(name)));
            }
        }
        Ok(values)
    }

    /// The value of `IDEMPOTENCY_<name>`, from the environment or the file.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let value = (self.environment)(&format!("{PREFIX}{name}"));
        value.filter(|value| !value.is_empty()).or_else(|| self.file.get(name).cloned())
    }

    /// The error message about a setting.
    pub(super) fn problem(&self, name: &str, problem: impl fmt::Display) -> String {
        format!("{}: {problem}", self.shown(name))
    }

    /// The setting's name in error messages.
    fn shown(&self, name: &str) -> String {
        match (&self.path, self.file.contains_key(name)) {
            (Some(path), true) => format!("`{}` in {}", name.to_lowercase(), path.display()),
            _ => format!("{PREFIX}{name}"),
        }
    }
}

/// Reads the settings of the file, and returns them by their names in the table.
fn in_file(text: &str) -> Result<BTreeMap<String, String>, String> {
    use serde_json::Value;
    let Entries(parsed) = serde_json::from_str(text).map_err(|error| {
        format!("it isn't a JSON object (line {}, column {})", error.line(), error.column())
    })?;
    let text_of = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let mut settings = BTreeMap::new();
    for (name, value) in parsed {
        let variable = name.to_uppercase();
        let setting = table::named(&variable).filter(|_| name == name.to_lowercase());
        let setting = setting.ok_or_else(|| table::unknown(&format!("`{name}`"), &variable))?;
        if let Some(reader) = setting.reader {
            return Err(format!(
                "`{name}` can't be in the file, because {reader} reads it from the environment; set the variable {} \
                 instead",
                setting.variable()
            ));
        }
        let text = match &value {
            Value::Array(parts) => {
                parts.iter().map(text_of).collect::<Option<Vec<_>>>().map(|all| all.join(","))
            }
            value => text_of(value),
        };
        let text = text.filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| {
            format!("`{name}` must be a number, a boolean, a nonempty string, or a nonempty list")
        })?;
        if settings.insert(variable, text).is_some() {
            return Err(format!("`{name}` appears twice; keep one"));
        }
    }
    Ok(settings)
}

/// All entries of a JSON object. A map would keep only the last entry of each name.
struct Entries(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}
