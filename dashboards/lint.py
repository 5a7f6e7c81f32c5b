#!/usr/bin/env python3
"""Checks the dashboards and rules: what Grafana's dashboard-linter asks for, as far as it applies, and that every metric exists in
the code and in docs/metrics.md. Prints one line per breach; exit 1 when there is one."""
import re
import sys

import queries

ROOT = queries.HERE.parent

# Counters shown as they stand, with the reason.
TOTALS = {
    "Steps": "how far the job is; restarts of the coordinator are what the reader should see",
    "Committed tokens": "the same",
    "Rounds": "a round takes minutes, so its count says more than its rate",
}
# Metrics in no panel or rule, with the reason.
RAW = {
    "fedshard_build_info": "feeds the dashboard's variables",
    "fedshard_coordinator_start_time_seconds": "for ad-hoc questions about restarts",
    "fedshard_node_up": "for alerts of sites that want one per node",
}


def exported_metrics():
    """Name -> type, from the code that renders the page."""
    text = (ROOT / "coordinator/metrics/render.cc").read_text()
    return {name: kind for kind, name in
            re.findall(r'Begin\(\s*MetricType::(\w+),\s*"(fedshard_[a-z_]+)"', text)}


def lint_dashboard(path, dashboard, exported):
    name = path.name
    for key, wanted in (("id", None), ("editable", False), ("schemaVersion", 39)):
        if dashboard.get(key) != wanted:
            yield f"{name}: {key} must be {wanted}"
    if not re.fullmatch(r"fedshard-[a-z-]+", dashboard.get("uid", "")):
        yield f"{name}: uid must be stable, fedshard-…"
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    source = [v for v in variables.values() if v["type"] == "datasource"]
    if len(source) != 1 or source[0]["name"] != "datasource" or source[0]["label"] != "Data source":
        yield f"{name}: must have one data source variable `datasource`, labelled Data source"
    for required in ("job", "instance"):
        variable = variables.get(required, {})
        if not variable.get("multi") or variable.get("allValue") != ".+":
            yield f"{name}: variable {required} must be multi-select with all-value .+"
    ids = set()
    for panel in queries.panels(dashboard):
        where = f"{name}: panel \"{panel.get('title')}\""
        if not panel.get("title") or not panel.get("description"):
            yield f"{where}: needs a title and a description"
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield f"{where}: needs a unit"
        if panel["id"] in ids:
            yield f"{where}: id {panel['id']} is used twice"
        ids.add(panel["id"])
        if not panel.get("targets"):
            yield f"{where}: has no query"
        for target in panel.get("targets", []):
            for metric in queries.metric_names(target["expr"]):
                if exported.get(metric) == "Counter" and "rate(" not in target["expr"] and panel["title"] not in TOTALS:
                    yield f"{where}: counter {metric} must be under rate"
            yield from (f"{where}: {error}" for error in lint_target(target, exported))


def lint_target(target, exported):
    expression = target["expr"]
    if target["datasource"]["uid"] != "${datasource}":
        yield "must use the data source variable"
    for selector in re.findall(r"fedshard_[a-z_]+\{([^}]*)\}", expression):
        for label in ("job", "instance"):
            if f'{label}=~"${label}"' not in selector:
                yield f"a selector has no {label}=~\"${label}\""
    for metric in re.findall(r"\bfedshard_[a-z_]+(?![a-z_]*\{)\b", expression):
        yield f"{metric} has no selector"
    for function, interval in re.findall(r"\b(rate|increase|irate)\([^\[]*\[([^\]]+)\]", expression):
        if interval != "$__rate_interval":
            yield f"{function} must use $__rate_interval"
    for metric in queries.metric_names(expression):
        kind = exported.get(metric) or exported.get(queries.base_name(metric))
        if kind is None:
            yield f"{metric} is not exported by the coordinator"
        if metric.endswith("_bucket") and "rate(" not in expression:
            yield f"{metric} must be under rate"


def lint_rules(exported):
    recorded = {name for kind, name, _ in queries.rules() if kind == "record"}
    for path in sorted(queries.HERE.glob("prometheus/*.yaml")):
        text = path.read_text()
        if len(re.findall(r"^\s*expr: \S", text, re.M)) != len(re.findall(r"- (?:record|alert): ", text)):
            yield f"{path.name}: each rule needs its expr on one line"
    alerts = (queries.HERE / "prometheus/alerts.yaml").read_text()
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    for kind, name, expression in queries.rules():
        for metric in queries.metric_names(expression):
            if metric not in recorded and metric not in exported and queries.base_name(metric) not in exported:
                yield f"rule {name}: {metric} does not exist"
        if kind == "record" and len(name.split(":")) != 3:
            yield f"rule {name}: must be level:metric:operations"
        if kind == "alert":
            block = alerts[alerts.index(f"- alert: {name}"):]
            block = block[:block.find("- alert:", 5)]
            for part in ("severity:", "summary:", "description:", "runbook_url:"):
                if part not in block:
                    yield f"alert {name}: needs {part[:-1]}"
            if not name.startswith("Fedshard"):
                yield f"alert {name}: name must start with Fedshard"
            if f"## {name}" not in runbooks:
                yield f"alert {name}: has no paragraph in docs/runbooks.md"


def lint_unused(exported):
    used = {queries.base_name(m) for _, d in queries.dashboards() for p in queries.panels(d)
            for t in p["targets"] for m in queries.metric_names(t["expr"])}
    used |= {queries.base_name(m) for _, _, e in queries.rules() for m in queries.metric_names(e)}
    for metric in sorted(exported.keys() - used - RAW.keys()):
        yield f"{metric} is in no panel and no rule; show it or list it as raw"
    for metric in sorted(RAW.keys() & used):
        yield f"{metric} is listed as raw, but used"


def lint_docs(exported):
    text = (ROOT / "docs/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(fedshard_[a-z_]+)` \| (\w+) \|", text, re.M))
    documented = set(rows)
    for metric in sorted(documented & exported.keys()):
        if rows[metric] != exported[metric].lower():
            yield f"docs/metrics.md: {metric} is a {exported[metric].lower()}, not a {rows[metric]}"
    for metric in sorted(exported.keys() - documented):
        yield f"docs/metrics.md: {metric} is missing"
    for metric in sorted(documented - exported.keys()):
        yield f"docs/metrics.md: {metric} is not exported"


def main():
    exported = exported_metrics()
    errors = [] if exported else ["no metrics found in coordinator/metrics/render.cc"]
    for path, dashboard in queries.dashboards():
        errors += lint_dashboard(path, dashboard, exported)
    errors += lint_rules(exported)
    errors += lint_unused(exported)
    errors += lint_docs(exported)
    print("\n".join(errors) if errors else f"{len(exported)} metrics, dashboards and rules are in order")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
