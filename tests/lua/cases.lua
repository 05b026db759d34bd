-- cases.lua - the golden cases of tests/golden/ops/, ready to be run in any dtype. Loaded by the tests with dofile.

local gb = require "gibbous"
local goldens = dofile("tests/lua/goldens.lua")

local cases = { read = goldens.read, elements = goldens.elements, tensor = goldens.tensor }

-- The spacing of a dtype at 1.
cases.epsilon = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }

cases.list, cases.named = cases.read("ops"), {}
for _, case in ipairs(cases.list) do
  cases.named[case.name] = case
  case.differentiable = {}
  for _, i in ipairs(case.grad) do case.differentiable[i] = true end
end

-- A tensor of a case, where tensors are made by default. Its text is read once.
local function stored(case, kind, i)
  local name = kind .. i
  local t = case.tensors[name]
  if type(t) == "string" then
    t = cases.tensor(t)
    case.tensors[name] = t
  end
  return t and t:detach():to(gb.get_default_device())
end
cases.stored = stored

-- The function of an op: gb's, F's, or the method.
function cases.op(name)
  local fn = rawget(gb, name)
  if type(fn) == "function" then return fn end -- gb.dist is a module
  return rawget(gb.nn.functional, name) or function(x, ...) return x[name](x, ...) end
end

-- The same elements in memory of another order: every other element of a larger tensor.
local function strided(x)
  if x.ndim == 0 then return x:clone() end
  local shape = x.shape
  shape[#shape] = shape[#shape] * 2
  local room = gb.zeros(table.unpack(shape)):to(x.dtype)
  local view = room:unflatten(-1, { -1, 2 }):select(-1, 1)
  view:copy_(x)
  return view
end

-- Input tensors of a case. Floating ones in dtype; leaves that require gradients where the case differentiates. layout
-- "strided" spreads them.
function cases.inputs(case, dtype, options)
  options = options or {}
  local inputs = {}
  for i = 0, case.inputs - 1 do
    local x = stored(case, "in", i)
    if x then
      x = x:is_floating_point() and x:to(dtype) or x:clone()
      if options.layout == "strided" then x = strided(x) end
      if case.differentiable[i] and options.grad ~= false then x:requires_grad_() end
    end
    inputs[i] = x
  end
  return inputs
end

local function argument(a, inputs)
  if type(a) ~= "table" then return a end
  if a["in"] then return inputs[a["in"]] end
  if a["nil"] then return nil end
  if a.options then
    local copy = {}
    for key, value in pairs(a.options) do copy[key] = value end
    return copy
  end
  local list = {}
  for i = 1, #a do list[i] = argument(a[i], inputs) end
  return list
end

-- Run a case on inputs: a list of its outputs.
function cases.run(case, inputs)
  local arguments = { n = #case.args }
  for i = 1, #case.args do arguments[i] = argument(case.args[i], inputs) end
  return { cases.op(case.op)(table.unpack(arguments, 1, arguments.n)) }
end

-- Gradients of the differentiable inputs, by position, for the case's incoming gradients (in each output's dtype), or
-- for `number` everywhere.
function cases.gradients(case, inputs, outputs, number)
  local total, k = nil, 0
  for _, y in ipairs(outputs) do
    if y:is_floating_point() and y.requires_grad then
      local up = number or stored(case, "up", k)
      k = k + 1
      -- the products are exact enough in float64, so the incoming gradient reaches the op unrounded but for its own
      -- dtype
      local part = y:to("float64"):mul(up):sum()
      total = total and total + part or part
    end
  end
  if not total then return {} end
  local leaves, grads = {}, {}
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then leaves[#leaves + 1] = inputs[i] end
  end
  local list = gb.grad(total, leaves, { allow_unused = true })
  local at = 0
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then
      at = at + 1
      grads[i] = list[at] or gb.zeros_like(inputs[i])
    end
  end
  return grads
end

local function flat(t)
  local list = t:detach():to("float64"):reshape(-1):tolist()
  return list
end

-- Is y within growth spacings of dtype from the float64 reference? The spacing is taken at the element's size plus a
-- quarter of the largest element's: sums of terms that cancel are only as exact as their terms. `bias` adds that many
-- tolerances to y, for the self-test.
function cases.within(y, reference, dtype, growth, bias)
  local a, b = flat(y), flat(reference)
  if #a ~= #b then return false, ("%d elements, expected %d"):format(#a, #b) end
  local largest = 0
  for i = 1, #b do
    if b[i] == b[i] and math.abs(b[i]) < math.huge then largest = math.max(largest, math.abs(b[i])) end
  end
  for i = 1, #b do
    local tolerance = growth * cases.epsilon[dtype] * (math.abs(b[i]) + largest / 4)
    local value = bias and a[i] + bias * tolerance or a[i]
    local same = value == b[i] or (value ~= value and b[i] ~= b[i])
    if not same and not (tolerance < math.huge and math.abs(value - b[i]) <= tolerance) then
      return false, ("element %d: %.10g, expected %.10g within %.3g"):format(i, value, b[i], tolerance)
    end
  end
  return true
end

return cases
