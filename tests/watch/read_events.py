"""Reads the event files of a folder with TensorBoard's own reader and prints what is in them, a line each.

Needs the package tensorboard (pip install tensorboard); tests/lua/test_loggers.lua runs it where GIBBOUS_PYTHON names a
Python that has it.
"""
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError:
    print("skipped: the package tensorboard is not installed")
    sys.exit(0)

reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
reader.Reload()
tags = reader.Tags()
for tag in sorted(tags["scalars"]):
    print("scalar", tag, " ".join(f"{e.step}:{e.value:.6g}" for e in reader.Scalars(tag)))
for tag in sorted(tags["histograms"]):
    for e in reader.Histograms(tag):
        h = e.histogram_value
        print("histogram", tag, f"{e.step} n {h.num:g} sum {h.sum:.6g} min {h.min:.6g} max {h.max:.6g}",
              f"buckets {sum(h.bucket):g}")
for tag in sorted(tags["images"]):
    for e in reader.Images(tag):
        print("image", tag, f"{e.step} {e.width}x{e.height}", e.encoded_image_string[1:4].decode())
for tag in sorted(tags["tensors"]):
    for e in reader.Tensors(tag):
        print("text", tag, e.step, e.tensor_proto.string_val[0].decode() if e.tensor_proto.string_val else "")
for tag, content in sorted(reader._plugin_to_tag_to_content.get("hparams", {}).items()):
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    kind = data.WhichOneof("data")
    if kind == "session_start_info":
        values = data.session_start_info.hparams
        print("hparams", " ".join(f"{k}={getattr(values[k], values[k].WhichOneof('kind'))}" for k in sorted(values)))
    elif kind == "experiment":
        print("metrics", " ".join(m.name.tag for m in data.experiment.metric_infos))
    else:
        print("end", data.session_end_info.status)
