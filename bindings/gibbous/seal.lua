-- seal.lua - asking a module of the library for a name that it does not have is an error: one that says so, and names
-- the nearest that is there.

local gb, native = ...
local fail, nearest, format = native.fail, native.nearest, string.format -- fail raises with the recipe's line

-- Names of the API that come in a later version; help() says so too.
local later = {
  ["gb"] = {},
  ["gb.linalg"] = {},
  ["gb.nn"] = {},
  ["gb.nn.functional"] = {},
  ["gb.nn.init"] = {},
  ["gb.nn.utils"] = {},
  ["gb.optim"] = {},
  ["gb.optim.lr"] = {},
  ["gb.amp"] = { "initialize", "set_global_policy", "fp8" },
  ["gb.data"] = {},
  ["gb.data.transforms"] = {},
  ["gb.io"] = { "onnx" },
  ["gb.random"] = {},
  ["gb.nn.parallel"] = { "DistributedDataParallel" },
  ["gb.dist"] = { "group" },
  ["gb.cuda"] = { "properties", "synchronize", "memory_allocated", "max_memory_allocated", "memory_summary", "graph" },
}

local modules = {
  ["gb"] = gb, ["gb.nn"] = gb.nn, ["gb.nn.functional"] = gb.nn.functional, ["gb.nn.init"] = gb.nn.init,
  ["gb.nn.utils"] = gb.nn.utils, ["gb.optim"] = gb.optim,
  ["gb.optim.lr"] = gb.optim.lr, ["gb.amp"] = gb.amp, ["gb.data"] = gb.data,
  ["gb.data.transforms"] = gb.data.transforms, ["gb.io"] = gb.io, ["gb.cuda"] = gb.cuda,
  ["gb.random"] = gb.random, ["gb.linalg"] = gb.linalg, ["gb.dist"] = gb.dist,
  ["gb.nn.parallel"] = gb.nn.parallel,
}

native.later = {}
for path, module in pairs(modules) do
  local missing = {}
  native.later[path] = missing
  for _, name in ipairs(later[path]) do missing[name] = true end
  setmetatable(module, {
    __library = path, -- for calls with a colon
    __index = function(_, name)
      if type(name) ~= "string" then return nil end
      if missing[name] then fail(format("%s.%s is not built into this version", path, name)) end
      fail(format("%s has no '%s'%s", path, name, nearest(name, module)))
    end,
  })
end
