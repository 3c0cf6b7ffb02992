use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn context(parent: &str) -> TraceContext {
    TraceContext::parse(parent, Some("vendor=1")).unwrap()
}

fn never(_: &mut Span) {
    panic!("this span is not recorded");
}

#[test]
fn with_traces_off_the_context_is_passed_on() {
    let traces = Traces::default();
    assert!(!traces.is_on());
    let Begun { context: next, span } = traces.begin(Some(&context(PARENT)), SpanKind::Server, never);
    assert_eq!((next, span.is_none()), (Some(context(PARENT)), true));
    assert!(traces.begin(None, SpanKind::Server, never).context.is_none());
}

#[test]
fn a_span_continues_its_parents_trace_and_is_the_parent_of_the_next() {
    let (traces, recorder) = Traces::recorded();
    let outer = traces.begin(Some(&context(PARENT)), SpanKind::Server, |span| {
        span.name("outer");
        span.set("size", 3_i64);
    });
    let next = outer.context.unwrap();
    assert_eq!((next.trace_id(), next.state()), ("0af7651916cd43dd8448eb211c80319c", Some("vendor=1")));
    let mut inner = traces.begin(Some(&next), SpanKind::Client, |span| span.name("inner")).span.unwrap();
    inner.failed("no luck");
    inner.link(&context(&PARENT.replace("3331", "4442")));
    inner.end();
    drop(outer.span);
    let (outer, inner) = (recorder.only("outer"), recorder.only("inner"));
    assert_eq!((outer.parent_id.as_str(), outer.kind), ("b7ad6b7169203331", SpanKind::Server));
    assert_eq!((outer.span_id.as_str(), outer.error), (next.span_id(), None));
    assert_eq!(outer.attributes["size"], "3");
    assert_eq!((inner.trace_id, inner.parent_id), (outer.trace_id, outer.span_id));
    assert_eq!((inner.error.as_deref(), inner.links), (Some("no luck"), vec!["b7ad6b7169204442".to_owned()]));
}

#[test]
fn without_a_parent_a_new_trace_begins() {
    let (traces, recorder) = Traces::recorded();
    let begun = traces.begin(None, SpanKind::Server, |span| span.name("root"));
    let context = begun.context.unwrap();
    assert!(context.is_sampled());
    begun.span.unwrap().end();
    let root = recorder.only("root");
    assert_eq!((root.parent_id.as_str(), root.trace_id.as_str()), ("0000000000000000", context.trace_id()));
}

#[test]
fn an_unsampled_context_is_passed_on_and_makes_no_span() {
    let (traces, recorder) = Traces::recorded_as(&Otlp { ratio: 0.0, ..Otlp::default() });
    let begun = traces.begin(None, SpanKind::Server, never).context.unwrap();
    assert!(!begun.is_sampled(), "{begun:?}");
    let next = traces.begin(Some(&begun), SpanKind::Client, never).context;
    assert_eq!(next, Some(begun));
    let begun_elsewhere = traces.begin(Some(&context(PARENT)), SpanKind::Client, |span| span.name("kept"));
    drop(begun_elsewhere);
    assert_eq!(recorder.spans().len(), 1, "the parent decided");
}

#[test]
fn only_parent_based_samplers_follow_the_parent() {
    let unsampled = context(&PARENT.replace("-01", "-00"));
    let kept = |sampler, ratio, parent: &TraceContext| {
        let (traces, recorder) = Traces::recorded_as(&Otlp { sampler, ratio, ..Otlp::default() });
        let begun = traces.begin(Some(parent), SpanKind::Server, |_| ());
        assert_eq!(begun.context.unwrap().is_sampled(), begun.span.is_some());
        drop(begun.span);
        recorder.spans().len() == 1
    };
    assert!(kept(OtlpSampler::Always, 0.0, &unsampled));
    assert!(kept(OtlpSampler::Ratio, 1.0, &unsampled));
    assert!(!kept(OtlpSampler::Ratio, 0.0, &context(PARENT)));
    assert!(!kept(OtlpSampler::Never, 1.0, &context(PARENT)));
    assert!(kept(OtlpSampler::ParentBasedNever, 1.0, &context(PARENT)));
    assert!(!kept(OtlpSampler::ParentBasedAlways, 1.0, &unsampled));
}

#[test]
fn the_ratio_of_traces_is_kept() {
    let (traces, recorder) = Traces::recorded_as(&Otlp { ratio: 0.1, ..Otlp::default() });
    (0..2000).for_each(|_| drop(traces.begin(None, SpanKind::Server, |_| ())));
    let kept = recorder.spans().len();
    // Six standard deviations around 200.
    assert!((119..=281).contains(&kept), "{kept} of 2000");
}
