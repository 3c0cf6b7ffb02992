//! The commands that a page shows, and how they are tested.
//!
//! An HTML comment above a code block of language `sh` says what a test does with it; readers do not see it. The lines
//! after the first one are commands that run before those of the block.
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- run -->` | the block is run and must succeed |
//! | `<!-- run, exit 0 or 1 -->` | the block is run and must end with one of these codes |
//! | `<!-- run until TEXT -->` | the block is started in the background, until its output has TEXT; it is stopped at the end of the page |
//! | `<!-- output -->` | this block, of any language, is what the block before it prints |
//! | `<!-- prepare -->` | only the lines of the comment are run; it needs no block |
//! | `<!-- file PATH -->` | this block, of any language, is written to the file before anything is run |
//! | `<!-- not run: REASON -->` | the block is not run |

use std::fmt::Write as _;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use uuid::Uuid;

/// How a code block is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It is run and must end with one of these codes.
    Run(Vec<u8>),
    /// It is started in the background, until its output has this text.
    RunUntil(String),
    /// It is the output of the block before it.
    Output,
    /// It is written to this file before anything is run.
    File(String),
    /// Nothing but the lines of the comment is run.
    Prepare,
    /// It is not run.
    NotRun,
}

/// A code block with its rule, or a comment that prepares for the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The line of the page, from 1, where the comment or the block without one begins.
    pub line: usize,
    /// The language of the block; empty without a block.
    pub language: String,
    /// The text of the block.
    pub text: String,
    /// How it is tested; [`None`] without a comment.
    pub rule: Option<Rule>,
    /// The lines that are run before it.
    pub before: String,
}

impl Shown {
    /// The rule of a comment and the lines below it. [`None`] if it is a comment about something else.
    fn of_comment(line: usize, html: &str) -> Option<Self> {
        let comment = html.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
        let (first, before) = comment.split_once('\n').unwrap_or((comment, ""));
        let first = first.trim();
        let rule = match first {
            "run" => Rule::Run(vec![0]),
            "output" => Rule::Output,
            "prepare" => Rule::Prepare,
            _ => {
                let with = |rule| first.strip_prefix(rule);
                let code = with("run, exit ").and_then(|codes| {
                    codes.split(" or ").map(|code| code.parse().ok()).collect::<Option<_>>().map(Rule::Run)
                });
                let until = || with("run until ").map(|text| Rule::RunUntil(text.to_owned()));
                let file = || with("file ").map(|path| Rule::File(path.to_owned()));
                let not_run = || with("not run: ").map(|_| Rule::NotRun);
                code.or_else(until).or_else(file).or_else(not_run)?
            }
        };
        let before = before.trim_end().to_owned();
        Some(Self { line, language: String::new(), text: String::new(), rule: Some(rule), before })
    }
}

/// The code blocks of a page and the comments that prepare for them, in their order.
pub fn shown(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut comment: Option<Shown> = None;
    let mut html: Option<String> = None;
    let mut is_code = false;
    for (event, range) in Parser::new(page).into_offset_iter() {
        let line = page[..range.start].matches('\n').count() + 1;
        match event {
            Event::Start(Tag::HtmlBlock) => html = Some(String::new()),
            Event::Html(text) => html.iter_mut().for_each(|html| html.push_str(&text)),
            Event::End(TagEnd::HtmlBlock) => {
                comment = html.take().and_then(|html| Shown::of_comment(line, &html));
                if comment.as_ref().is_some_and(|comment| comment.rule == Some(Rule::Prepare)) {
                    found.extend(comment.take());
                }
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                let bare = Shown {
                    line,
                    language: String::new(),
                    text: String::new(),
                    rule: None,
                    before: String::new(),
                };
                found.push(Shown { language, ..comment.take().unwrap_or(bare) });
                is_code = true;
            }
            Event::End(TagEnd::CodeBlock) => is_code = false,
            Event::Text(text) if is_code => {
                found.last_mut().expect("a block has begun").text.push_str(&text);
            }
            _ => comment = None,
        }
    }
    found
}

/// What is wrong with the comments of a page, one line each.
pub fn problems(page: &str) -> Vec<String> {
    const PROGRAMS: [&str; 8] = [
        "garenne",
        "garenne-producer",
        "garenne-worker",
        "garenne-drill",
        "curl",
        "./dev",
        "cargo",
        "docker",
    ];
    let mut found = Vec::new();
    let mut has_run = false;
    for Shown { line, language, text, rule, .. } in shown(page) {
        let program = text.trim_start_matches("$ ").split_whitespace().next().unwrap_or_default();
        match (language.as_str(), rule) {
            ("sh", None) => {
                found.push(format!("{line}: commands without a comment that says whether they are run"));
            }
            ("", None) if PROGRAMS.contains(&program) => {
                found.push(format!("{line}: commands in a block that is not `sh`"));
            }
            ("sh", Some(Rule::Output)) => found.push(format!("{line}: an output in a block of commands")),
            (_, Some(Rule::Output)) if !has_run => found.push(format!("{line}: an output of nothing")),
            (language, Some(Rule::Run(_) | Rule::RunUntil(_))) if language != "sh" => {
                found.push(format!("{line}: commands in a block that is not `sh`"));
            }
            (_, rule) => has_run = matches!(rule, Some(Rule::Run(_) | Rule::Output)),
        }
    }
    found
}

/// How a script begins. Nothing that it starts holds the pipes of the test, so that the end of the script is its end. Each job
/// is a process group, of which all processes are stopped at the end.
const START: &str = r#"set -euo pipefail -m
exec >>"$LOG" 2>&1 </dev/null
current=/dev/null
stop_jobs() { for job in $(jobs -p); do kill -- -$job || true; done; wait; }
end() {
    code=$?
    exec >>"$LOG" 2>&1
    [ $code = 0 ] || cat $current
    stop_jobs
    exit $code
}
trap end EXIT
until_printed() { timeout 60 grep -m1 -qF -e "$1" <(tail --pid=$$ -n +1 -F "$2" 2>/dev/null); }
curl() { command curl -sS --fail-with-body --retry 20 --retry-delay 1 "$@"; }
# Sends what it reads, and prints the answers, as `nc -N`, which not every machine has.
nc() {
    python3 -c 'import socket, sys
with socket.create_connection(sys.argv[2:]) as stream:
    stream.sendall(sys.stdin.buffer.read())
    stream.shutdown(socket.SHUT_WR)
    while got := stream.recv(65536):
        sys.stdout.write(got.decode())' "$@"
}
"#;

/// A shell script that runs the commands of a page in their order. It writes the line `::LINE` to the file `$LOG` before each
/// block, and the block's output to the file `LINE.out` in the folder `output`. Commands of comments may use
/// `until_printed TEXT FILE` and `stop_jobs`.
pub fn script(page: &str, output: &str) -> String {
    let mut script = String::from(START);
    for Shown { text, rule, .. } in shown(page) {
        if let Some(Rule::File(path)) = rule {
            writeln!(script, "mkdir -p $(dirname {path})\ncat >{path} <<'END_OF_BLOCK'\n{text}END_OF_BLOCK")
                .expect("a text takes everything");
        }
    }
    for Shown { line, text, rule, before, .. } in shown(page) {
        let file = format!("{output}/{line}.out");
        let run = match rule {
            None | Some(Rule::NotRun | Rule::Output | Rule::File(_)) => continue,
            Some(Rule::Prepare) => String::new(),
            Some(Rule::Run(codes)) if codes == [0] => {
                format!("exec >{file} 2>&1\n{text}exec >>\"$LOG\" 2>&1\n")
            }
            Some(Rule::Run(codes)) => {
                let codes: Vec<_> = codes.iter().map(u8::to_string).collect();
                let codes = codes.join("|");
                format!(
                    "set +e\nexec >{file} 2>&1\n{text}code=$?\nexec >>\"$LOG\" 2>&1\nset -e\n[[ $code =~ ^({codes})$ ]]\n"
                )
            }
            Some(Rule::RunUntil(until)) => {
                format!("{{\n{text}}} >{file} 2>&1 &\nuntil_printed {until:?} {file}\n")
            }
        };
        writeln!(script, "echo ::{line}\n{before}\ncurrent={file}\ntouch {file}\n{run}")
            .expect("a text takes everything");
    }
    script
}

/// The first line of `expected` that is not in `printed`, in this order. Numbers, times and ids may differ, white space
/// does not count, and `…` stands for any text.
pub fn missing<'e>(expected: &'e str, printed: &str) -> Option<&'e str> {
    let printed = comparable(printed);
    let mut rest = printed.as_str();
    expected.lines().find(|line| {
        let mut parts = line.split('…').map(comparable);
        !parts.all(|part| match rest.find(&part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

/// A text without white space, with `#` for each number and `ID` for each id.
fn comparable(text: &str) -> String {
    let mut found = String::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, after) = rest.split_at(end);
        rest = after;
        match Uuid::try_parse(word) {
            Ok(_) if word.len() == 36 => found.push_str("ID"),
            _ => found.push_str(word),
        }
    }
    let found: String = found.split_whitespace().collect();
    let mut numbered = String::new();
    let mut rest = found.as_str();
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            // A comma or a point belongs to the number if a digit follows.
            let is_number = |(at, c): (usize, char)| {
                let followed = rest[at + c.len_utf8()..].starts_with(|next: char| next.is_ascii_digit());
                c.is_ascii_digit() || (matches!(c, '.' | ',') && followed)
            };
            let end = rest.char_indices().find(|&at| !is_number(at)).map_or(rest.len(), |(at, _)| at);
            numbered.push('#');
            rest = &rest[end..];
        } else {
            numbered.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n\n<!-- prepare\ntouch a\n-->\n\n<!-- run\ncp a b\n-->\n```sh\nls\n```\n\nIt prints:\n\n\
        <!-- output -->\n```\na\nb\n```\n\n<!-- not run: it needs a cluster -->\n```sh\nkubectl get all\n```\n\n\
        <!-- run until ready to serve -->\n```sh\nserve\n```\n\n```toml\na = 1\n```\n\n<!-- run, exit 1 -->\n```sh\nfalse\n```\n";

    #[test]
    fn comments_belong_to_the_next_block() {
        let found = shown(PAGE);
        let rules: Vec<_> = found.iter().map(|shown| (shown.line, shown.rule.clone())).collect();
        let until = Rule::RunUntil("ready to serve".to_owned());
        assert_eq!(
            rules,
            [
                (3, Some(Rule::Prepare)),
                (7, Some(Rule::Run(vec![0]))),
                (16, Some(Rule::Output)),
                (22, Some(Rule::NotRun)),
                (27, Some(until)),
                (32, None),
                (36, Some(Rule::Run(vec![1]))),
            ]
        );
        assert_eq!((found[1].before.as_str(), found[1].text.as_str()), ("cp a b", "ls\n"));
        assert_eq!(problems(PAGE), [""; 0]);
        let script = script(PAGE, "out");
        assert!(
            script.contains("touch a")
                && script.contains("serve\n} >out/27.out")
                && !script.contains("kubectl"),
            "{script}"
        );
    }

    #[test]
    fn a_command_that_nobody_decided_about_is_named() {
        let page = "```sh\nls\n```\n\ntext\n\n```\n$ garenne status\n```\n\n<!-- output -->\n```\na\n```\n\n<!-- run -->\n```\nls\n```\n";
        assert_eq!(
            problems(page),
            [
                "1: commands without a comment that says whether they are run",
                "7: commands in a block that is not `sh`",
                "11: an output of nothing",
                "16: commands in a block that is not `sh`",
            ]
        );
    }

    #[test]
    fn outputs_may_differ_in_numbers_and_ids_only() {
        let printed = "{\"accepted\":1,\"ids\":[\"01a1f788-7839-76d4-9070-06fd560d4e75\"]}\nready 3  unacked 1,200\n\nat 2026-01-01T00:00:00Z";
        for same in [
            "{\"accepted\":7,\n \"ids\":[\"01a1f788-7839-76d4-9070-06fd560d4e79\"]}",
            "ready 17 unacked 4",
            "{…\n…\nat 2027-11-24T10:15:30Z",
            "{\"accepted\":1…,\"ids\":…",
        ] {
            assert_eq!(missing(same, printed), None, "{same}");
        }
        assert_eq!(missing("ready 1\nrefused 2", printed), Some("refused 2"));
        assert_eq!(missing("at 2027-11-24T10:15:30Z\nready 1", printed), Some("ready 1"), "in this order");
        assert_eq!(missing("ready … consumers 1", printed), Some("ready … consumers 1"));
    }
}
