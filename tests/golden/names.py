#!/usr/bin/env python3
"""Every public name of PyTorch that a recipe may use, with its options.

Usage: python tests/golden/names.py [--check]   (needs torch; writes tests/golden/names.jsonl)

A line holds a name, as "Tensor.add", "torch.where", "F.relu", "nn.Linear", "optim.Adam", "lr_scheduler.StepLR",
"init.zeros_", "utils.clip_grad_norm_" or "linalg.inv", and its options: the arguments that have a default, or that
only some forms of a call take. tests/lua/test_names.lua looks each up in Gibbous.
"""
import inspect
import json
import pathlib
import sys
import types

import torch

PATH = pathlib.Path(__file__).with_name("names.jsonl")
SCHEMAS = {}  # of the native functions, by name: the forms of each
for form in torch._C._jit_get_all_schemas():
    if form.name.startswith("aten::"):
        SCHEMAS.setdefault(form.name[len("aten::"):], []).append(form)
# Beside what a module lists or defines: names from other places of PyTorch that stand in its pages
LISTED = {
    "torch": ["Tensor", "no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "finfo", "iinfo"],
    "optim": ["swa_utils.AveragedModel", "swa_utils.SWALR", "swa_utils.update_bn"],
    "utils": ["rnn.pad_sequence", "rnn.unpad_sequence", "rnn.pack_padded_sequence", "rnn.pad_packed_sequence",
              "rnn.pack_sequence", "rnn.unpack_sequence", "rnn.PackedSequence", "parametrizations.weight_norm",
              "parametrizations.spectral_norm", "parametrizations.orthogonal"],
}


def resolve(module, path):
    """What a dotted path leads to."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def options_of_schemas(name):
    """Of a native function: arguments with a default, and those that not all of its forms have."""
    forms = [[a for a in form.arguments if a.name != "self"] for form in SCHEMAS[name]
             if all(str(a.type) == "Tensor" for a in form.arguments if a.name == "self")]  # not of lists and words
    if not forms:
        return []
    required = set.intersection(*({a.name for a in form if not a.has_default_value()} for form in forms))
    optional = ["out" if a.is_out else a.name for form in forms for a in form if a.has_default_value() or a.kwarg_only]
    return [option for option in dict.fromkeys(optional) if option not in required]


def options_of(key, value):
    """The options of a function or class; none where PyTorch does not tell."""
    name = key.split(".")[-1]
    if key.startswith("linalg."):
        name = "linalg_" + name
    if key in ("nn.RNN", "nn.LSTM", "nn.GRU"):
        value = torch.nn.RNNBase  # theirs are *args
    if key.startswith("F."):
        value = getattr(torch.nn.functional, name + "_with_indices", value)  # the whole of what the plain name takes
    try:
        parameters = inspect.signature(value).parameters.values()
        options = [p.name for p in parameters if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
        if options or not all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            return options
    except (TypeError, ValueError):
        pass
    options = options_of_schemas(name) if name in SCHEMAS else []
    return [option for option in options if not (key.startswith("Tensor.") and option == "out")]  # methods have none


def is_own(value):
    """Is it a function, not a class of the machinery below?"""
    return isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.BuiltinMethodType))


def public(module):
    """The functions and classes that a module lists."""
    return sorted({name for name in module.__all__ if not name.startswith("_") and callable(getattr(module, name))})


def names():
    """All names: a key and the value it stands for."""
    for name in dir(torch.Tensor):
        if not name.startswith("_"):
            yield "Tensor." + name, inspect.getattr_static(torch.Tensor, name)
    modules = {
        "F": torch.nn.functional, "optim": torch.optim, "lr_scheduler": torch.optim.lr_scheduler, "init": torch.nn.init,
        "utils": torch.nn.utils, "linalg": torch.linalg,
    }
    functions = {n for n in torch.__all__ if not n.startswith("_") and is_own(getattr(torch, n))}
    for name in sorted(functions | set(LISTED["torch"])):
        yield "torch." + name, getattr(torch, name)
    for name, value in sorted(vars(torch.nn).items()):
        if isinstance(value, type):
            yield "nn." + name, value
    for name in dir(torch.nn.Module):
        if not name.startswith("_"):
            yield "Module." + name, getattr(torch.nn.Module, name)
    for short, module in modules.items():
        if short == "linalg":
            listed = [n for n in dir(module) if not n.startswith("_") and is_own(getattr(module, n))]
        elif short == "F":  # what it defines, and what it takes over from the native half
            listed = [n for n, v in vars(module).items()
                      if not n.startswith("_") and is_own(v) and "torch_function" not in n and (
                          isinstance(v, types.BuiltinFunctionType) or v.__module__ == module.__name__)]
        else:
            listed = public(module)
        for name in sorted(listed) + LISTED.get(short, []):
            yield short + "." + name, resolve(module, name)


def main():
    """Write the file, or say that it is stale."""
    lines = [{"torch": torch.__version__.split("+")[0]}]
    for key, value in names():
        lines.append({"name": key, "options": options_of(key, value)})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PATH.read_text() == text else f"{PATH} is stale: python {sys.argv[0]}")
    PATH.write_text(text)


if __name__ == "__main__":
    main()
