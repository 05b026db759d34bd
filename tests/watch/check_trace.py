"""Checks a trace of gb.profile as Perfetto and Chrome read it: complete events nest on each row, flows have both ends
inside events, counters are numbers. Needs Python alone: check_trace.py trace.json
"""
import collections
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
rows, flows = collections.defaultdict(list), collections.defaultdict(dict)
for e in events:
    assert e["ph"] in "XMCsf", e
    if e["ph"] == "X":
        start = round(e["ts"] * 1000)
        rows[e["pid"], e["tid"]].append((start, -(start + round(e["dur"] * 1000)), e["name"]))
    elif e["ph"] in "sf":
        flows[e["id"]][e["ph"]] = e
    elif e["ph"] == "C":
        assert all(isinstance(v, (int, float)) for v in e["args"].values()), e
for row, spans in rows.items():
    open_ends = []
    for start, end, name in sorted(spans):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or -end <= open_ends[-1], f"{name} on row {row} reaches out of what it lies in"
        open_ends.append(-end)
for number, ends in flows.items():
    assert set(ends) == {"s", "f"} and ends["s"]["ts"] < ends["f"]["ts"], number
    for e in ends.values():
        at = round(e["ts"] * 1000)
        assert any(start <= at <= -end for start, end, _ in rows[e["pid"], e["tid"]]), e
print(f"{sum(map(len, rows.values()))} events on {len(rows)} rows nest; {len(flows)} flows")
