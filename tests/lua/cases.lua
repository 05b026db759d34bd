-- cases.lua - the golden cases of tests/golden/ops/, ready to be run in any dtype. Loaded by the tests with dofile.

local gb = require "gibbous"

local cases = {}

-- The spacing of a dtype at 1.
cases.epsilon = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }

-- {==== golden files (tests/golden/lines.py writes them) ====

-- The lines of tests/golden/<kind>/<family>.jsonl for every family that has them, in order; each knows its family.
function cases.read(kind)
  local lines, seen, names = {}, {}, {}
  for _, row in ipairs(gb.test.ops()) do
    local file = not seen[row.family] and io.open(("tests/golden/%s/%s.jsonl"):format(kind, row.family))
    seen[row.family] = true
    for text in file and file:lines() or function() end do
      local line = gb.io.json_decode(text)
      if names[line.name] then error(("tests/golden/%s has two lines '%s'"):format(kind, line.name)) end
      names[line.name], line.family = true, row.family
      lines[#lines + 1] = line
    end
    if file then file:close() end
  end
  if #lines == 0 then error("there is nothing in tests/golden/" .. kind) end
  return lines
end

local named = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0 }

-- The elements of a tensor's text and its shape and dtype. base: the elements that "." stands for.
function cases.elements(text, base)
  local dtype, sizes, rest = text:match("^(%w+)%[([%d,]*)%](.*)$")
  local list, shape = {}, {}
  for size in sizes:gmatch("%d+") do shape[#shape + 1] = math.tointeger(tonumber(size)) end
  for word, times in rest:gmatch("([^%s*]+)%*?(%d*)") do
    for _ = 1, times == "" and 1 or tonumber(times) do
      list[#list + 1] = word == "." and base[#list + 1] or named[word] or tonumber(word)
    end
  end
  return list, shape, dtype
end

-- The tensor of a text, in host memory.
function cases.tensor(text, base)
  local list, shape, dtype = cases.elements(text, base)
  return gb.tensor(list, { dtype = dtype, device = "cpu" }):reshape(shape)
end

-- ====}

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
  return rawget(gb, name) or rawget(gb.nn.functional, name) or function(x, ...) return x[name](x, ...) end
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

-- Input tensors of a case. Floating ones in dtype; leaves that require gradients where the case differentiates. layout "strided" spreads them.
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

-- Gradients of the differentiable inputs, by position, for the case's incoming gradients (in each output's dtype), or for `number` everywhere.
function cases.gradients(case, inputs, outputs, number)
  local total, k = nil, 0
  for _, y in ipairs(outputs) do
    if y:is_floating_point() and y.requires_grad then
      local up = number or stored(case, "up", k)
      k = k + 1
      -- the products are exact enough in float64, so the incoming gradient reaches the op unrounded but for its own dtype
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

-- Is y within growth spacings of dtype from the float64 reference? The spacing is taken at the element's size plus a quarter of the largest
-- element's: sums of terms that cancel are only as exact as their terms. `bias` adds that many tolerances to y, for the self-test.
function cases.within(y, reference, dtype, growth, bias)
  local a, b = flat(y), flat(reference)
  if #a ~= #b then return false, ("%d elements, expected %d"):format(#a, #b) end
  local largest = 0
  for i = 1, #b do
    if b[i] == b[i] and math.abs(b[i]) < math.huge then largest = math.max(largest, math.abs(b[i])) end
  end
  for i = 1, #b do
    local tolerance = growth * cases.epsilon[dtype] * (math.abs(b[i]) + largest / 4)
    local value = a[i] + (bias or 0) * tolerance
    local same = value == b[i] or (value ~= value and b[i] ~= b[i])
    if not same and not (math.abs(value - b[i]) <= tolerance) then
      return false, ("element %d: %.10g, expected %.10g within %.3g"):format(i, value, b[i], tolerance)
    end
  end
  return true
end

return cases
