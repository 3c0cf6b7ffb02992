//! Words in the name of a metric that tell its quantity.

/// The words of a quantity.
pub struct Words {
    /// Whether a word, in lower case, names it.
    pub word: fn(&str) -> bool,
    /// What names it only as the whole name of the metric, without its number and what is before a dot, slash or colon: as
    /// a word among others it may say something else, such as `press` in `button_press`.
    pub whole: &'static [&'static str],
}

/// `temp`, `temperature`, `Temperatur`, `roomTemp`, `tempC`, `dew`, `dewpoint`, and `t` alone.
pub static TEMPERATURE: Words = Words {
    word: |word| {
        word.contains("temperat")
            || word.strip_suffix(['c', 'f', 'k']).unwrap_or(word).ends_with("temp")
            || word.ends_with("temp")
            || word.starts_with("dew")
    },
    whole: &["t"],
};

/// `humidity`, `air.rh`, `hum2`.
pub static HUMIDITY: Words =
    Words { word: |word| word.contains("humidity") || matches!(word, "rh" | "hum" | "humid"), whole: &[] };

/// `pressure`, `baromrelin`, and `press` or `pres` alone.
pub static PRESSURE: Words =
    Words { word: |word| word.contains("pressure") || word.starts_with("baro"), whole: &["press", "pres"] };

impl Words {
    /// Whether one of them is in the name of `metric`: a part of `roomTemp`, `temp1outside` or `TempC1` counts as a word.
    pub fn are_in(&self, metric: &str) -> bool {
        let name = metric.rsplit(['.', '/', ':']).next().unwrap_or(metric);
        let name = name.trim_end_matches(|c: char| !c.is_alphabetic());
        self.whole.iter().any(|whole| name.eq_ignore_ascii_case(whole))
            || metric.split(|c: char| !c.is_alphanumeric()).flat_map(parts).any(|part| {
                let part = part.to_lowercase();
                (self.word)(&part) || part.split(|c: char| c.is_ascii_digit()).any(self.word)
            })
    }
}

/// A word, and the parts of one such as `roomTemp` and `TempC1`.
fn parts(word: &str) -> impl Iterator<Item = &str> {
    let begins = |(at, c): (usize, char)| {
        let follows = word[..at].ends_with(|before: char| !before.is_uppercase());
        (follows && c.is_uppercase()).then_some(at)
    };
    let starts: Vec<usize> = [0].into_iter().chain(word.char_indices().filter_map(begins)).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([word.len()]).collect();
    [word].into_iter().chain(starts.into_iter().zip(ends).map(|(start, end)| &word[start..end]))
}

/// A metric without the tags or attributes that a gateway appends to its name, as in `disk.used,path=/data/pressure`. Their
/// values are words of others, and do not tell the quantity.
pub fn without_labels(metric: &str) -> &str {
    let is_label =
        |comma: &usize| metric[comma + 1..].split(',').next().is_some_and(|label| label.contains('='));
    let mut commas = metric.match_indices(',').map(|(at, _)| at);
    commas.find(is_label).map_or(metric, |at| &metric[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_no_part_of_the_name() {
        for (metric, name) in [
            ("disk.used,path=/data/pressure", "disk.used"),
            ("cpu,cpu=0,state=idle", "cpu"),
            ("room 1, temperature", "room 1, temperature"),
            ("a,b,c=d", "a,b"),
            ("x,", "x,"),
            ("temperature", "temperature"),
        ] {
            assert_eq!(without_labels(metric), name);
        }
    }

    #[test]
    fn a_quantity_is_a_word_a_part_of_one_or_the_whole_name() {
        for (words, of, metrics) in [
            (
                &TEMPERATURE,
                true,
                &["t", "T2", "a/t", "tempC", "TempC1", "temp1outside", "Dew point", "upTemp"],
            ),
            (
                &PRESSURE,
                true,
                &["pres", "press", "oil.press", "baro", "Pressure", "airPressure", "x1pressure", "p:pres"],
            ),
            (&HUMIDITY, true, &["rh", "RH1", "roomRH", "hum_in", "humid", "air.RH", "Humidity", "2rh"]),
            (&TEMPERATURE, false, &["energyT", "t_on", "attempts", "template", "tempo", "x", "", "1"]),
            (
                &PRESSURE,
                false,
                &["button_press", "expression", "x.present", "p", "", "-", "present", "pres_n"],
            ),
        ] {
            for metric in metrics {
                assert_eq!(words.are_in(metric), of, "{metric}");
            }
        }
    }
}
