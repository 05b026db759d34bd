-- called.lua - what test_errors calls with what it is not made for, and test_coverage counts as called so: the modules
-- of the library, the methods of tensors that are no ops, and a layer or loss of each class that has a golden line.

local gb = require "gibbous"
local goldens = dofile("tests/lua/goldens.lua")
local nn = gb.nn

local called = {
  modules = { gb = gb, ["gb.nn"] = nn, ["gb.nn.functional"] = nn.functional, ["gb.nn.init"] = nn.init,
    ["gb.nn.utils"] = nn.utils, ["gb.nn.utils.rnn"] = nn.utils.rnn, ["gb.nn.parallel"] = nn.parallel,
    ["gb.linalg"] = gb.linalg, ["gb.random"] = gb.random, ["gb.optim"] = gb.optim, ["gb.optim.lr"] = gb.optim.lr,
    ["gb.amp"] = gb.amp, ["gb.data"] = gb.data, ["gb.io"] = gb.io, ["gb.cuda"] = gb.cuda },
  methods = {}, layers = {},
  -- Functions that a call with junk would leave a trace of, or that end the script.
  apart = { interrupt = true, set_num_threads = true, set_printoptions = true, args = true, plot = true,
    progress = true },
}

for _, row in ipairs(gb.test.public_names()) do
  local name = row.name:match("^tensor:([%w_]+)$")
  if name and not row.op then called.methods[#called.methods + 1] = name end
end

local text_of = {}
for _, line in ipairs(goldens.read("calls", { "layers", "losses" })) do
  local name = line.names[1]
  if not text_of[name] then
    text_of[name], called.layers[#called.layers + 1] = line.module, name
  end
end

-- A new one of the class of this name.
function called.layer(name) return assert(load("local nn = ... return " .. text_of[name]))(nn) end

return called
