//! Names of devices and metrics that are made of foreign names, tags and attributes.

use std::sync::Arc;

use garenne_protocol::{
    quoted,
    sensor::{BadField, Fault, Limits},
};
use sha2::{Digest, Sha256};

/// The tags or attributes that belong to a metric, as `,key=value` in the order of the keys. Series that differ in one of
/// them are different metrics: `cpu0` and `cpu1` of one host.
pub(super) fn labels<'l>(pairs: impl Iterator<Item = (&'l str, &'l str)>) -> String {
    let mut labels: Vec<String> = pairs.map(|(key, value)| format!(",{key}={value}")).collect();
    labels.sort_unstable();
    labels.concat()
}

/// Refuses tags or attributes of which one is given twice: `what` names such a one.
pub(super) fn check_keys<'k>(
    (field, what): (&'static str, &str),
    keys: impl Iterator<Item = &'k str>,
) -> Result<(), BadField> {
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    keys.windows(2).find(|pair| pair[0] == pair[1]).map_or(Ok(()), |pair| {
        Err(Fault::Duplicate.in_field(field, format!("the {what} {} is given twice", quoted(pair[0]))))
    })
}

/// Refuses a name, tag or attribute with a control character, which stands for a byte that is not UTF-8, too.
pub(super) fn check_text(field: &'static str, text: &str) -> Result<(), BadField> {
    if !text.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!("{}: contains a control character or a byte that is not UTF-8", quoted(text));
    Err(Fault::BadName.in_field(field, message))
}

/// Makes a valid device or metric name. A name that is too long is cut and gets a hash of the whole name, so that
/// different names stay different.
pub(super) fn fit(name: &str) -> Arc<str> {
    const MAX: usize = Limits::TEXT_BYTES;
    let clean: String = name.trim().chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if clean.is_empty() {
        return "_".into();
    }
    if clean.len() <= MAX {
        return clean.into();
    }
    let hash = hex::encode(&Sha256::digest(clean.as_bytes())[..4]);
    let end = clean.floor_char_boundary(MAX - 9);
    format!("{}#{hash}", clean[..end].trim_end()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let long = |end: &str| fit(&format!("{}{end}", "ü".repeat(100)));
        assert!(long("a").len() <= Limits::TEXT_BYTES);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn labels_have_one_order() {
        assert_eq!(labels([("b", "2"), ("a", "1")].into_iter()), ",a=1,b=2");
        assert_eq!(labels([].into_iter()), "");
    }
}
