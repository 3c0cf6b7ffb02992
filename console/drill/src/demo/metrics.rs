//! Reads a metric from a process's admin port.

/// The sum of a counter or gauge over its labels. Nothing if the process does not answer.
pub(super) async fn metric_sum(http: &reqwest::Client, admin: &str, name: &str) -> Option<u64> {
    let answer = http.get(format!("{admin}/metrics")).send().await.ok()?;
    Some(sum(&answer.text().await.ok()?, name))
}

/// The sum of a metric over its labels, in Prometheus' text format.
fn sum(text: &str, name: &str) -> u64 {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        matches!(rest.bytes().next()?, b'{' | b' ').then(|| rest.rsplit(' ').next()?.parse().ok())?
    };
    text.lines().filter_map(value).sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP x y\nx_total{lane=\"a\"} 3\nx_total{lane=\"b\"} 4\nx_total_created 9\ny_total 5\n";
        assert_eq!((sum(text, "x_total"), sum(text, "y_total"), sum(text, "z")), (7, 5, 0));
    }
}
