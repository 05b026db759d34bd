-- init.lua - puts the Lua half of the library together: every chunk gets gb and the native functions that recipes do not see, and adds its
-- part to gb. A chunk may use what the chunks before it made.

local gb, native, run = ...

native.classes = {} -- by the name that the reference gives their objects

-- What few recipes use is read when one of its functions is first called, so that a program opens fast.
local function lazily(chunk, owner, name)
  local function stand_in(...)
    if owner[name] == stand_in then run(chunk) end
    return owner[name](...)
  end
  owner[name] = stand_in
end
lazily("doctor", gb, "doctor")
lazily("audit", gb.amp, "audit")
lazily("help", native, "help_entry")
lazily("help", native, "public_names")

for _, name in ipairs {
  "nn/module", "nn/init", "nn/layers",
  "amp", "numerics", "optim", "cuda", "data", "io",
  "args", "progress", "test", "seal",
} do
  run(name)
end
