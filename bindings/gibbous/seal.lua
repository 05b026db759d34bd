-- seal.lua - asking a module of the library for a name that it does not have is an error: one that says so, and names
-- the nearest that is there.

local _, native = ...
local fail, nearest, format = native.fail, native.nearest, string.format -- fail raises with the recipe's line

-- Names of the API that come in a later version; help() says so too.
local later = {
  ["gb.amp"] = { "initialize", "set_global_policy", "fp8" },
  ["gb.io"] = { "onnx" },
  ["gb.nn.parallel"] = { "DistributedDataParallel" },
  ["gb.dist"] = { "group" },
  ["gb.cuda"] = { "properties", "synchronize", "memory_allocated", "max_memory_allocated", "memory_summary", "graph" },
}

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
  fail(format("%s has no '%s'%s", path, name, nearest(name, known)))
end
