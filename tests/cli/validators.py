"""Reads exports by the packages of others: validators.py FOLDER. Prints sums as JSON."""

import base64
import json
import sys
from pathlib import Path

import atif
import duckdb
import pyarrow.compute
import pyarrow.parquet
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

folder = Path(sys.argv[1])

trajectories = [atif.Trajectory.model_validate_json(file.read_text()) for file in sorted(folder.glob("atif/*.json"))]
calls = sum(len(step.tool_calls or []) for trajectory in trajectories for step in trajectory.steps)

spans = 0
for line in (folder / "otlp.jsonl").read_text().splitlines():
    request = json.loads(line)
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                # OTLP writes IDs in hexadecimal, unlike the JSON of protocol buffers.
                for name in ["traceId", "spanId", "parentSpanId"]:
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    parsed = json_format.Parse(json.dumps(request), ExportTraceServiceRequest())
    spans += sum(len(scope.spans) for resource in parsed.resource_spans for scope in resource.scope_spans)

tables = {name: pyarrow.parquet.read_table(folder / f"parquet/{name}.parquet") for name in ["workers", "messages", "calls"]}
arrow = {
    "workers": tables["workers"].num_rows,
    "tokens": pyarrow.compute.sum(tables["workers"]["tokens_input"]).as_py(),
    "calls": tables["calls"].num_rows,
    "failed": pyarrow.compute.sum(pyarrow.compute.equal(tables["calls"]["outcome"], "failed")).as_py(),
}
database = duckdb.connect()
query = """select (select count(*) from '{0}/workers.parquet') as workers,
    (select sum(tokens_input)::bigint from '{0}/workers.parquet') as tokens,
    (select count(*) from '{0}/calls.parquet') as calls,
    (select count(*) from '{0}/calls.parquet' where outcome = 'failed') as failed"""
row = database.execute(query.format(folder / "parquet")).fetchone()
duck = dict(zip(["workers", "tokens", "calls", "failed"], row))
print(json.dumps({"atif": [len(trajectories), calls], "otlp": spans, "pyarrow": arrow, "duckdb": duck}))
