-- seal.lua - asking a module of the library for a name that it does not have is an error: one that says so, and names
-- the nearest that is there.

local _, native = ...
local fail, nearest, format = native.fail, native.nearest, string.format -- fail raises with the recipe's line

-- Names of the API that come in a later version; help() says so too.
local later = {
  ["gb.amp"] = { "initialize", "set_global_policy", "fp8" },
  ["gb.io"] = { "onnx" },
  ["gb.cuda"] = { "properties", "synchronize", "memory_allocated", "max_memory_allocated", "memory_summary", "graph" },
}

-- What other libraries call what is here by another name, or has another form here.
local elsewhere = {
  ["gb"] = { from_numpy = "gb.data.npy(path) for a file, gb.tensor(list) for values",
    autograd = "gb.grad and gb.Function", autocast = "gb.amp.autocast",
    utils = "gb.data, gb.nn.utils and, for checkpoints of activations, gb.recompute",
    Tensor = "gb.tensor(list), gb.empty(sizes)", FloatTensor = "gb.tensor(list)",
    LongTensor = "gb.tensor(list, { dtype = \"int64\" })", distributions = "gb.normal, gb.rand and x:exponential_()",
    compile = "the model itself, whose ops run at once", jit = "the model itself, whose ops run at once",
    inf = "math.huge", nan = "0 / 0", pi = "math.pi",
    backends = "gb.set_deterministic and gb.set_float32_matmul_precision", vision = "gb.data" },
  ["gb.optim"] = { lr_scheduler = "gb.optim.lr", swa_utils = "gb.optim.Average and gb.optim.EMA" },
  ["gb.io"] = { save = "gb.save(path, tensors)", load = "gb.load(path)" },
  ["gb.cuda"] = { manual_seed = "gb.manual_seed(seed)", manual_seed_all = "gb.manual_seed(seed)", amp = "gb.amp" },
  ["gb.nn.functional"] = { unfold = "gb.nn.functional.im2col(x, kernel)",
    fold = "gb.nn.functional.col2im(x, size, kernel)" },
  ["gb.nn.utils.rnn"] = { pack_padded_sequence = "the layer's option: lstm(x, state, { lengths = list })",
    pad_packed_sequence = "the layer's option: lstm(x, state, { lengths = list })" },
  ["gb.nn"] = { DataParallel = "gb.nn.parallel.DataParallel(model)" },
  ["gb.nn.parallel"] = { DistributedDataParallel = "DataParallel(model)" },
  ["gb.dist"] = { group = "gb.dist.new_group(ranks)", init_process_group = "gb.dist.init()",
    get_rank = "gb.dist.rank()", get_world_size = "gb.dist.world_size()" },
  ["gb.data"] = { ImageFolder = "gb.data.images(folder)", read_csv = "gb.data.csv(path)",
    MNIST = "gb.data.mnist(folder)", DatasetFolder = "gb.data.files(folder)",
    IterableDataset = "gb.data.Dataset(count, get)" },
  ["gb.data.transforms"] = { ToTensor = "to_float()", RandomHorizontalFlip = "flip()",
    RandomVerticalFlip = "flip { direction = \"vertical\" }", RandomResizedCrop = "resized_crop(size)",
    RandomRotation = "rotate(degrees)", Compose = "compose(list)" },
}
for name, dtype in pairs { long = "int64", int = "int32", short = "int16", float = "float32", double = "float64",
  half = "float16" } do
  elsewhere["gb"][name] = format("the string \"%s\"", dtype)
end
for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
  "bool" } do
  elsewhere["gb"][dtype] = format("the string \"%s\"", dtype)
end

native.later = {}
for path, names in pairs(later) do
  native.later[path] = {}
  for _, name in ipairs(names) do native.later[path][name] = true end
end

-- Raise: the module at this path has no such name. known: the names that it has, as keys.
function native.unknown_name(path, name, known)
  if native.later[path] and native.later[path][name] then
    fail(format("%s.%s is not built into this version", path, name))
  end
  local other = elsewhere[path] and elsewhere[path][name]
  fail(format("%s has no '%s'%s", path, name, other and "; it is " .. other .. " here" or nearest(name, known)))
end
