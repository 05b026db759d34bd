-- test_calls.lua - what is made of ops (functions, layers, losses) against PyTorch (tests/golden/calls.py): results and
-- gradients in float64, buffers that change, and results in float32. Under autocast the dtypes of results are those of
-- PyTorch, and the bits those of the same call with inputs cast by hand: in float32, or in the dtype of the scope.

local gb = require "gibbous"
local goldens = dofile("tests/lua/goldens.lua")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, amp = gb.nn, gb.nn.functional, gb.amp
local here = { device = gb.get_default_device() }
local lines = goldens.read("calls", { "functions", "layers", "losses" })

-- Without LAPACK its lines cannot run.
local works, why = pcall(gb.linalg.inv, gb.eye(2, { device = "cpu" }))
if not works then print("skipped: lines that need LAPACK: " .. tostring(why)) end

-- What is neither in one dtype nor in the other under autocast, out of the functions that its op is made of.
local function encoder_layer(m, x)
  x = x:transpose(1, 2) -- the batch first, as attention takes it
  x = m.norm1(x + m.self_attn(x))
  return m.norm2(x + m.linear2(F.relu(m.linear1(x)))):transpose(1, 2)
end
local function decoder_layer(m, x, memory)
  x, memory = x:transpose(1, 2), memory:transpose(1, 2)
  x = m.norm1(x + m.self_attn(x))
  x = m.norm2(x + m.multihead_attn(x, memory))
  return m.norm3(x + m.linear2(F.relu(m.linear1(x)))):transpose(1, 2)
end
local parts = {
  ["gb.linalg.vecdot"] = function(_, x, y)
    x, y = gb.broadcast_tensors(x, y)
    return x:unsqueeze(-2):matmul(y:unsqueeze(-1)):reshape(-1)
  end,
  ["gb.nn.SqueezeExcite"] = function(m, x)
    local y = F.relu(F.conv2d(F.adaptive_avg_pool2d(x, 1), m.fc1.weight, m.fc1.bias))
    return F.sigmoid(F.conv2d(y, m.fc2.weight, m.fc2.bias)) * x
  end,
  ["gb.nn.TransformerEncoder"] = function(m, x)
    for _, layer in ipairs(m.layers) do x = encoder_layer(layer, x) end
    return x
  end,
  ["gb.nn.TransformerDecoder"] = function(m, x, memory) return decoder_layer(m.layers[1], x, memory) end,
  ["gb.nn.TransformerEncoderLayer"] = encoder_layer, ["gb.nn.TransformerDecoderLayer"] = decoder_layer,
}

-- {==== running a line ====

-- The module of a line in this dtype, with its state.
local function module_of(line, dtype)
  if not line.module then return nil end
  local module = assert(load("local nn = ... return " .. line.module))(nn)
  local state = {}
  for key, text in pairs(line.tensors) do
    local name = key:match("^state%.(.+)$")
    if name then state[name] = goldens.tensor(text) end
  end
  if nn.is_module(module) then
    module:load_state_dict(state)
    module:to(dtype, here.device)
    if line.name:find(", eval", 1, true) then module:eval() end
  end
  return module
end

local function inputs_of(line, dtype, graded)
  local inputs = {}
  for i = 1, line.inputs do
    local x = goldens.tensor(line.tensors["in" .. i - 1]):to(here.device)
    if x:is_floating_point() then x = x:to(dtype) end
    inputs[i] = graded and line.tensors["grad" .. i - 1] and x:requires_grad_() or x
  end
  return inputs
end

-- The tensors that the call gives, out of lists too.
local function run(line, module, inputs)
  local call = assert(load("local gb, F, nn, L, m, a, b, c, d = ... return " .. line.lua))
  local outs = { call(gb, F, nn, gb.linalg, module, table.unpack(inputs)) }
  if type(outs[1]) == "table" then outs = outs[1] end
  for i, y in ipairs(outs) do
    if not gb.is_tensor(y) then outs[i] = gb.tensor(y) end
  end
  return outs
end

-- Shape, the dtype of what is no float, and values; the tolerance is of the largest element, or 1.
local function same(what, got, text, tolerance)
  local want = goldens.tensor(text)
  expect(table.concat(got.shape, "x")):to_be(table.concat(want.shape, "x"))
  if not want:is_floating_point() then expect(got.dtype):to_be(want.dtype) end
  if want:numel() == 0 then return end
  local x, y = got:detach():to("cpu"):double(), want:double()
  local scale = math.max(1, y:abs():amax():item())
  local off = (x - y):abs():amax():item()
  if not (off <= tolerance * scale) then error(("%s is off by %g of %g"):format(what, off, scale), 0) end
end

-- ====}

local function each(title, fn, wide)
  describe(title, function()
    for _, line in ipairs(lines) do
      if (works or not line.lapack) and (wide or not line.wide) then it(line.name, function() fn(line) end) end
    end
  end)
end

-- A dozen sums of a dozen products: 1e-11 is far above their rounding, and the digits of the files, and far below a
-- wrong term.
each("goldens in float64", function(line)
  local module, inputs, total = module_of(line, "float64"), inputs_of(line, "float64", true), nil
  local outs = run(line, module, inputs)
  expect(#outs):to_be(line.outputs)
  for i, y in ipairs(outs) do same("output " .. i, y, line.tensors["out" .. i - 1], 1e-11) end
  for _, i in ipairs(line.graded) do
    local part = (outs[i + 1] * goldens.tensor(line.tensors["up" .. i]):to(here.device)):sum()
    total = total and total + part or part
  end
  if total then total:backward() end
  for key, text in pairs(line.tensors) do
    local what, which = key:match("^(%a+)%.?(.+)$")
    if what == "grad" then
      local x = inputs[tonumber(which) + 1]
      same(key, x.grad or gb.zeros_like(x), text, 1e-10)
    elseif what == "dstate" then same(key, module:get_parameter(which).grad, text, 1e-10)
    elseif what == "after" then same(key, module:get_buffer(which), text, 1e-11)
    end
  end
end, true)

-- Lines with equal elements, or with one where the function bends or, as softplus at its threshold, jumps: no gradient
-- there is right on both sides.
local kinks = {}
for name in ([[functional.embedding_bag, max of equal rows|AdaptiveMaxPool1d|MaxPool2d|Softplus, 2, 3|
  HingeEmbeddingLoss, none|MultiLabelMarginLoss, mean|MultiLabelMarginLoss, none]]):gmatch("%s*([^|]+)") do
  kinks["gb.nn." .. name] = true
end

-- The sum that "goldens in float64" derives, of fresh modules, since some keep what they have seen.
local function total_of(line, inputs)
  local outs, total = run(line, module_of(line, "float64"), inputs), 0
  for _, i in ipairs(line.graded) do
    total = total + (outs[i + 1] * goldens.tensor(line.tensors["up" .. i]):to(here.device)):sum()
  end
  return total
end

-- Central differences of step 1e-5 are wrong by 1e-10 of third derivatives, and by 1e-11 of rounding.
each("finite differences", function(line)
  if #line.graded == 0 or kinks[line.name] then return end
  local inputs = inputs_of(line, "float64", true)
  total_of(line, inputs):backward()
  for i, x in ipairs(inputs) do
    if x.grad then
      local function at(step)
        local moved = table.pack(table.unpack(inputs))
        moved[i] = x:detach() + step
        return total_of(line, moved):item()
      end
      local way = gb.cos(gb.arange(x:numel(), { dtype = "float64", device = x.device })):view(x.shape)
      local measured = (at(way * 1e-5) - at(way * -1e-5)) / 2e-5
      local told = (x.grad * way):sum():item()
      local off, scale = math.abs(measured - told), math.max(1, math.abs(told))
      if not (off <= 1e-6 * scale) then error(("input %d: %g, the gradient says %g"):format(i, measured, told), 0) end
    end
  end
end)

-- 24 bits, some hundred times rounded.
each("goldens in float32", function(line)
  for i, y in ipairs(run(line, module_of(line, "float32"), inputs_of(line, "float32"))) do
    same("output " .. i, y, line.tensors["out" .. i - 1], 2e-5)
  end
end)

-- {==== autocast ====

local function bits_agree(xs, ys)
  for i, x in ipairs(xs) do
    if x.dtype ~= ys[i].dtype or not gb.equal(x:nan_to_num(), ys[i]:nan_to_num()) then return false end
  end
  return true
end

each("under autocast", function(line)
  local function call(dtype) return run(line, module_of(line, dtype), inputs_of(line, dtype)) end
  local function scoped() return amp.autocast("bfloat16", call, "float32") end
  if line.name:find("gb.nn.BCELoss", 1, true) then return expect(scoped):to_fail("unsafe under autocast") end
  local outs = scoped()
  for i, dtype in ipairs(type(line.autocast) == "table" and line.autocast or {}) do
    expect(outs[i].dtype):to_be(dtype)
  end
  local by_parts = parts[line.name] -- else one dtype or the other
  if by_parts then
    local module, inputs = module_of(line, "float32"), inputs_of(line, "float32")
    local made = amp.autocast("bfloat16", by_parts, module, table.unpack(inputs))
    return expect(bits_agree(outs, { made })):to_be(true)
  end
  if bits_agree(outs, call("float32")) then return end
  expect(bits_agree(outs, call("bfloat16"))):to_be(true)
end)

-- ====}

gb.test.finish()
