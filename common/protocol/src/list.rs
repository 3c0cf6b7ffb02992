//! Lists of JSON objects, read one object at a time and within a limit.
//!
//! A list of a few bytes per object can need a hundred times its size once it is parsed. The objects are therefore
//! handed on one by one, and nothing is read beyond the limit. serde would also take a list for an object, with the
//! fields by position. Here an object must be an object, so that the `{` of a text are an upper bound of its objects.

use std::{fmt, marker::PhantomData};

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
    value::MapAccessDeserializer,
};
use thiserror::Error;

/// Why a list was not read to its end.
#[derive(Debug, Error)]
pub enum ListError<E> {
    /// The text is no list of objects, or an object is malformed.
    #[error(transparent)]
    Json(serde_json::Error),
    /// There are more objects than allowed.
    #[error("too many objects")]
    TooMany,
    /// An object was refused by the caller.
    #[error("an object was refused")]
    Refused(E),
}

/// Calls `take` with the index and the value of each object of a list, at most `most` times.
///
/// # Errors
/// The first problem of the list. `take` may have been called before it.
pub fn for_each<'t, T: Deserialize<'t>, E>(
    text: &'t [u8],
    most: usize,
    take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), ListError<E>> {
    let mut problem = None;
    let mut parser = serde_json::Deserializer::from_slice(text);
    let elements = Elements { most, take, problem: &mut problem, element: PhantomData };
    let read = elements.deserialize(&mut parser).and_then(|()| parser.end());
    read.map_err(|error| problem.unwrap_or(ListError::Json(error)))
}

/// Reads a list of objects, for `#[serde(deserialize_with)]`. Null is an empty one.
///
/// # Errors
/// It is no list of objects, or an object is malformed.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    let objects = Option::<Vec<Object<T>>>::deserialize(list)?.unwrap_or_default();
    // In place: both types have the same layout.
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

/// A value that is an object in the text.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

struct Elements<'p, T, E, F> {
    most: usize,
    take: F,
    /// The typed problem while a serde error, which has only a text, goes through the parser.
    problem: &'p mut Option<ListError<E>>,
    element: PhantomData<T>,
}

impl<'de, T, E, F> DeserializeSeed<'de> for Elements<'_, T, E, F>
where
    T: Deserialize<'de>,
    F: FnMut(usize, T) -> Result<(), E>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

impl<'de, T, E, F> Visitor<'de> for Elements<'_, T, E, F>
where
    T: Deserialize<'de>,
    F: FnMut(usize, T) -> Result<(), E>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(Object(value)) = list.next_element()? {
            let refused = if index == self.most {
                Some(ListError::TooMany)
            } else {
                (self.take)(index, value).err().map(ListError::Refused)
            };
            if let Some(problem) = refused {
                *self.problem = Some(problem);
                return Err(A::Error::custom("the list ends here"));
            }
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Deserialize)]
    struct Item<'t> {
        #[serde(default)]
        n: u8,
        #[serde(borrow)]
        payload: Option<&'t RawValue>,
    }

    /// The items that were taken, and the error.
    fn read(text: &str, most: usize) -> (Vec<(usize, u8, String)>, Option<String>) {
        let mut taken = Vec::new();
        let read = for_each(text.as_bytes(), most, |index, item: Item<'_>| {
            if item.n == 13 {
                return Err("unlucky");
            }
            taken.push((index, item.n, item.payload.map_or("-", RawValue::get).to_owned()));
            Ok(())
        });
        let error = read.err().map(|error| match error {
            ListError::Refused(reason) => reason.to_owned(),
            error => error.to_string(),
        });
        (taken, error)
    }

    #[test]
    fn objects_are_taken_in_order_with_their_payloads_as_they_are() {
        let (taken, error) = read(r#" [{"n":1,"payload":{"v": 1.50}}, {"other":[{}]},{"n":2}] "#, 3);
        let expected = [(0, 1, r#"{"v": 1.50}"#), (1, 0, "-"), (2, 2, "-")];
        assert_eq!(taken, expected.map(|(index, n, payload)| (index, n, payload.to_owned())));
        assert_eq!(error, None);
        assert_eq!(read("[]", 0), (vec![], None));
    }

    #[test]
    fn nothing_is_read_behind_the_limit_or_a_refused_object() {
        let (taken, error) = read("[{},{},{} nonsense", 2);
        assert_eq!((taken.len(), error.as_deref()), (2, Some("too many objects")));
        let (taken, error) = read(r#"[{"n":1},{"n":13} nonsense"#, 9);
        assert_eq!((taken.len(), error.as_deref()), (1, Some("unlucky")));
    }

    #[test]
    fn only_a_list_of_objects_is_read() {
        for (text, expected) in [
            ("{}", "invalid type: map, expected a list of objects at line 1 column 0"),
            ("[[]]", "invalid type: sequence, expected an object at line 1 column 1"),
            ("[1]", "invalid type: integer `1`, expected an object at line 1 column 2"),
            ("[{}]x", "trailing characters at line 1 column 5"),
            ("[{},", "EOF while parsing a value at line 1 column 4"),
        ] {
            assert_eq!(read(text, 9).1.as_deref(), Some(expected), "{text}");
        }
        let list = |text: &str| {
            objects::<_, Item<'_>>(&mut serde_json::Deserializer::from_str(text)).map(|it| it.len())
        };
        assert_eq!(list(r#"[{"n":1},{}]"#).unwrap(), 2);
        assert_eq!(list("null").unwrap(), 0);
        assert!(list("[[],[]]").is_err());
    }
}
