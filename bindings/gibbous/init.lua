-- init.lua - puts the Lua half of the library together: every chunk gets gb and the native functions that recipes do not see, and adds its
-- part to gb. A chunk may use what the chunks before it made.

local _, _, run = ...

for _, name in ipairs {
  "nn/module", "nn/init", "nn/layers",
  "amp", "optim", "data", "io",
  "args", "progress", "time", "test", "seal",
} do
  run(name)
end
