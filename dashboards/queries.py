"""The queries of the dashboards and rules, for the checks beside this file. Standard library only."""
import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent


def dashboards():
    """(path, parsed JSON) of each dashboard."""
    for path in sorted(HERE.glob("grafana/*.json")):
        yield path, json.loads(path.read_text())


def panels(dashboard):
    """All panels but rows, those inside collapsed rows included."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def rules():
    """(kind, name, expression) of each rule. Our rule files keep one `expr:` line per rule, which lint.py checks."""
    for path in sorted(HERE.glob("prometheus/*.yaml")):
        name = None
        for line in path.read_text().splitlines():
            match = re.match(r"\s*- (record|alert): (\S+)\s*$", line)
            if match:
                name = match.groups()
            match = re.match(r"\s*expr: (.+)$", line)
            if match and name:
                yield name[0], name[1], match[1]
                name = None


def metric_names(expression):
    """Metrics of ours in an expression, recorded ones included."""
    return set(re.findall(r"\b(?:[a-z_]+:)?fedshard_[a-z0-9_]+(?::[a-z0-9_]+)?", expression))


def base_name(metric):
    """The family of a histogram's series."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)
