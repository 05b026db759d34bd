-- init.lua - puts the Lua half of the library together: every chunk gets gb and the native functions that recipes do not see, and adds its
-- part to gb. A chunk may use what the chunks before it made.

local _, native, run = ...

native.classes = {} -- by the name that the reference gives their objects

for _, name in ipairs {
  "nn/module", "nn/init", "nn/layers",
  "amp", "optim", "cuda", "data", "io",
  "args", "progress", "doctor", "help", "test", "seal",
} do
  run(name)
end
