"""Checks the metric names and labels in all expressions of rules and dashboards against the programs' source code, and
writes the dashboards' expressions as a rules file for promtool.

usage: expressions.py OUT.yml      (from the repository's root; exit 1 with a line per fault)
"""

import json
import pathlib
import re
import sys

RULES = pathlib.Path("deploy/prometheus/rules.yml")
DASHBOARDS = sorted(pathlib.Path("deploy/grafana/dashboards").glob("*.json"))

# Labels that Prometheus or Kubernetes adds.
GIVEN = {"job", "instance", "namespace", "le"}

def exported():
    """The labels of each metric, from the programs' source code."""
    found = {}
    # A test lists names, types and labels of the metrics that workers and gateways share.
    table = pathlib.Path("common/src/telemetry/metrics/tests.rs").read_text()
    for name, kind, labels in re.findall(r'\("(garenne_\w+)", "(\w+)", "([\w ]*)"\)', table):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + suffix: set(labels.split()) for suffix in suffixes}
    # Metrics that one program registers: name, help (a text or a variable), and labels if there are any.
    sources = [
        "console/src/dashboard/metrics.rs",
        "producer/gateway/src/audit.rs",
        "producer/gateway/src/instruments.rs",
        "producer/publish/src/spool.rs",
        "producer/mqtt/src/instruments.rs",
        "worker/engine/src/sink/health.rs",
        "worker/engine/src/worker/start.rs",
    ]
    own = "".join(pathlib.Path(source).read_text() for source in sources)
    for name, labels in re.findall(r'"(garenne_\w+)",\s*(?:"[^"]*"|\w+)(?:,\s*&\[([^\]]*)\])?', own):
        found[name] = set(re.findall(r"\w+", labels))
    for name in re.findall(r"record: (garenne:\S+)", RULES.read_text()):
        found[name] = {"lane"}
    return found


def of_dashboards(faults):
    """(where, expression) of every panel, variable and annotation."""
    uids = {}
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        if uids.setdefault(board["uid"], path) != path:
            faults.append(f"{path}: uid {board['uid']} is already used by {uids[board['uid']]}")
        ids = [panel["id"] for panel in board["panels"]]
        if len(ids) != len(set(ids)):
            faults.append(f"{path}: panels share an id")
        known = {variable["name"] for variable in board["templating"]["list"]}
        if board["templating"]["list"][0]["query"] != "prometheus":
            check_sql(path, board, known, faults)
            continue
        texts = []
        for panel in board["panels"]:
            texts += [(f"{path}: {panel['title']}", target["expr"]) for target in panel.get("targets", [])]
            if panel["type"] != "row" and not panel.get("targets"):
                faults.append(f"{path}: panel {panel['title']} has no query")
        texts += [(f"{path}: annotation {note['name']}", note["expr"]) for note in board["annotations"]["list"]]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                values = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
                if not values:
                    faults.append(f"{path}: variable {variable['name']}: expected label_values(selector, label)")
                    continue
                texts.append((f"{path}: variable {variable['name']}", values[1]))
        for where, text in texts:
            plain = text.replace("$__rate_interval", "5m")
            for variable in re.findall(r"\$\{?(\w+)", plain):
                if variable not in known:
                    faults.append(f"{where}: ${variable} is not a variable of this dashboard")
            yield where, re.sub(r"\$\{?\w+\}?", "x", plain)


def check_sql(path, board, known, faults):
    """Checks a dashboard of the database. The scenario read_api runs its statements on the tables."""
    statements = [(variable["name"], variable["query"]) for variable in board["templating"]["list"] if variable["type"] == "query"]
    for panel in board["panels"]:
        statements += [(panel["title"], target["rawSql"]) for target in panel.get("targets", [])]
        if panel["type"] != "row" and not panel.get("targets"):
            faults.append(f"{path}: panel {panel['title']} has no query")
    for where, text in statements:
        for variable in re.findall(r"\$\{?(?!__)(\w+)", text):
            if variable not in known:
                faults.append(f"{path}: {where}: ${variable} is not a variable of this dashboard")
        if re.search(r"'\$\{?(?!__)\w+", text):
            faults.append(f"{path}: {where}: quote variables with :sqlstring, which escapes them")


def check_names(where, text, metrics, faults):
    bare = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    for name in set(re.findall(r"\bgarenne[_:][\w:]+", bare)):
        if name not in metrics:
            faults.append(f"{where}: no program exports {name}")
    for name, labels in re.findall(r"\b(garenne[_:][\w:]+)\{([^}]*)\}", bare):
        for label in re.findall(r"(\w+)\s*[=!]", labels):
            if label not in metrics.get(name, {label}) | GIVEN:
                faults.append(f"{where}: {name} has no label {label}; it has {', '.join(sorted(metrics[name])) or 'none'}")


def main():
    faults, records = [], []
    metrics = exported()
    if len(metrics) < 20:
        faults.append("common/src/telemetry/metrics/tests.rs: the table of metrics was not found")
    for where, text in of_dashboards(faults):
        check_names(where, text, metrics, faults)
        records.append({"record": f"dashboards:expression:{len(records)}", "expr": text})
    # Rules are YAML, which the standard library cannot parse; a regular expression is sufficient here.
    rules = "\n".join(line for line in RULES.read_text().splitlines() if not line.lstrip().startswith(("#", "- record:")))
    expressions = re.findall(r"expr: (?:\|\n((?:[ ]{10,}.*\n)+)|(.*))", rules)
    for block, line in expressions:
        check_names(str(RULES), block or line, metrics, faults)
    for fault in faults:
        print(fault, file=sys.stderr)
    pathlib.Path(sys.argv[1]).write_text(json.dumps({"groups": [{"name": "dashboards", "rules": records}]}))
    print(f"{len(expressions)} expressions of rules and {len(records)} of dashboards use only exported metrics")
    return 1 if faults else 0


sys.exit(main())
