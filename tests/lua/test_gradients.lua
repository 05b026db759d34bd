-- test_gradients.lua - every differentiable op against central differences in float64, and twice where its row says
-- twice.
--
-- f(x + h d) - f(x - h d) over 2 h, along random directions d. h = 2^-17 balances rounding (2^-52 / h) and the third
-- derivative (h^2), which leaves about eight digits; the tolerance of 1e-5 allows sums of a few thousand terms.

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")

local derivative = {}
for _, row in ipairs(gb.test.ops()) do derivative[row.name] = row.derivative end

local h = 2 ^ -17

-- A scalar of all floating outputs: a fixed weighting, so that every output matters.
local function scalar(case, inputs)
  local total
  for k, y in ipairs(cases.run(case, inputs)) do
    if y:is_floating_point() and y:numel() > 0 then
      local weight = gb.arange(y:numel(), { dtype = "float64" }):mul(0.37):add(k):sin():reshape(y.shape)
      local part = (y * weight):sum()
      total = total and total + part or part
    end
  end
  return total
end

local function leaves_of(case, inputs)
  local leaves = {}
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then leaves[#leaves + 1] = inputs[i] end
  end
  return leaves
end

-- The derivative of fn(inputs) along direction (by input position), by central differences.
local function numeric(case, inputs, directions, fn)
  local values = {}
  for s, sign in ipairs { 1, -1 } do
    local moved = {}
    for i = 0, case.inputs - 1 do
      local x = inputs[i]
      if x and directions[i] then x = (x:detach() + directions[i] * (sign * h)):requires_grad_() end
      moved[i] = x
    end
    values[s] = fn(moved)
  end
  return (values[1] - values[2]) / (2 * h)
end

local function directions_of(case, inputs)
  local directions = {}
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then directions[i] = gb.randn(inputs[i].shape, { dtype = "float64" }) end
  end
  return directions
end

local function along(list, case, directions)
  local total, at = 0.0, 0
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then
      at = at + 1
      if list[at] then total = total + (list[at] * directions[i]):sum():item() end
    end
  end
  return total
end

local function compare(exact, approximate)
  if not (math.abs(exact - approximate) <= 1e-5 * (1 + math.abs(exact))) then
    error(("the gradient says %.10g, differences say %.10g"):format(exact, approximate))
  end
end

local function check_once(case, layout)
  local inputs = cases.inputs(case, "float64", { layout = layout })
  local y = scalar(case, inputs)
  if not y then return end
  local list = gb.grad(y, leaves_of(case, inputs), { allow_unused = true })
  local directions = directions_of(case, inputs)
  compare(along(list, case, directions), numeric(case, inputs, directions,
    function(moved) return scalar(case, moved):item() end))
end

-- The gradient itself is a function: its derivative along another direction.
local function check_twice(case)
  local inputs = cases.inputs(case, "float64")
  local first = directions_of(case, inputs)
  local function inner(moved)
    local y = scalar(case, moved)
    if not y then return nil end
    local list = gb.grad(y, leaves_of(case, moved), { create_graph = true, allow_unused = true })
    local total, at = nil, 0
    for i = 0, case.inputs - 1 do
      if case.differentiable[i] then
        at = at + 1
        if list[at] then
          local part = (list[at] * first[i]):sum()
          total = total and total + part or part
        end
      end
    end
    return total
  end
  local y = inner(inputs)
  if not y then return end
  local list = y.requires_grad and gb.grad(y, leaves_of(case, inputs), { allow_unused = true }) or {}
  local second = directions_of(case, inputs)
  compare(along(list, case, second), numeric(case, inputs, second, function(moved) return inner(moved):item() end))
end

-- Divisors below their least value are raised outside of the graph, as in PyTorch, so that the gradient is not that of
-- what is computed.
local raised = { ["cosine_similarity (short vectors)"] = true, ["gaussian_nll_loss (eps)"] = true }

-- A row of the table that gets no gradient on purpose is no derivative, and what a view cannot express is its error.
local function comparable(case, layout)
  return case.tag ~= "padding" and not raised[case.name] and not (layout == "strided" and case.op == "view")
end

gb.manual_seed(11)
for _, layout in ipairs { "contiguous", "strided" } do
  describe("first derivative, " .. layout, function()
    for _, case in ipairs(cases.list) do
      if next(case.differentiable) and comparable(case, layout) then
        it(case.name, function() check_once(case, layout) end)
      end
    end
  end)
end

describe("second derivative", function()
  for _, case in ipairs(cases.list) do
    local once = derivative[case.op] == "once"
    if next(case.differentiable) and derivative[case.op] == "twice" and not raised[case.name] then
      it(case.name, function() check_twice(case) end)
    elseif next(case.differentiable) and once and case.tag ~= "empty" then
      it(case.name .. " says that it has none", function()
        local inputs = cases.inputs(case, "float64")
        local y = scalar(case, inputs)
        gb.test.expect(function() gb.grad(y, leaves_of(case, inputs),
          { create_graph = true, allow_unused = true }) end):to_fail(case.op)
      end)
    end
  end
end)

-- A bool or integer operand counts as the same numbers in the floating dtype of the others: in the result, and in the
-- gradients of the others. Within 4 spacings: a formula may compute in float32 where floating operands would keep it in
-- 16 bits.
describe("beside a bool or integer operand", function()
  local checked = {}
  local function check(case, i, kind, dtype)
    local mixed, floating = cases.inputs(case, dtype), cases.inputs(case, dtype)
    local whole = (mixed[i]:detach() * 3):round():abs():to(kind)
    mixed[i], floating[i] = whole, whole:to(dtype):requires_grad_(case.differentiable[i] or false)
    local ok, mine = pcall(cases.run, case, mixed)
    if not ok then -- the op takes floats only there, and says so
      local text = tostring(mine)
      for _, said in ipairs { "floating", "float", "class indices", " is float", "does not fit" } do
        if text:find(said, 1, true) then return end
      end
      error(mine, 0)
    end
    local theirs = cases.run(case, floating)
    local function gradients(outputs)
      local total
      for _, y in ipairs(outputs) do
        if y:is_floating_point() and y.requires_grad then total = (total or 0) + y:double():sum() end
      end
      if total then total:backward() end
    end
    gradients(mine)
    gradients(theirs)
    for k = 1, #mine do
      if mine[k].requires_grad then
        gb.test.expect(mine[k].dtype):to_be(theirs[k].dtype)
        assert(cases.within(mine[k], theirs[k], dtype, 4))
      end
    end
    for k = 0, case.inputs - 1 do
      if k ~= i and mixed[k] and mixed[k].grad then
        checked[case.op] = true
        assert(cases.within(mixed[k].grad, floating[k].grad, dtype, 4))
      end
    end
  end
  for _, case in ipairs(cases.list) do
    if case.inputs >= 2 and case.op ~= "scaled_dot_product_attention" then -- whose bool mask means something else
      it(case.name, function()
        for i = 0, case.inputs - 1 do
          local x = cases.inputs(case, "float32")[i]
          for _, kind in ipairs(x and x:is_floating_point() and
            { "bool", "uint8", "int8", "int16", "int32", "int64" } or {}) do
            for _, dtype in ipairs { "float16", "float32", "float64" } do check(case, i, kind, dtype) end
          end
        end
      end)
    end
  end
  it("was asked of those that take one", function()
    for _, op in ipairs { "add", "sub", "mul", "div", "remainder", "pow", "maximum", "minimum", "atan2", "addcmul",
      "addcdiv", "where", "kl_div",
                          "binary_cross_entropy", "mse_loss" } do
      if not checked[op] then error(op .. " was not checked") end
    end
  end)
  it("does not wrap in the integer's dtype", function()
    for kind, most in pairs { uint8 = 200, int8 = 100, int16 = 30000, int32 = 100000, int64 = 100000 } do
      local a = gb.tensor({ most, 0 }, { dtype = kind })
      local b, c = gb.tensor({ 3.0, 2.0 }, { dtype = "float64", requires_grad = true }),
        gb.tensor({ 3.0, 2.0 }, { dtype = "float64", requires_grad = true })
      gb.atan2(a, b):sum():backward()
      gb.atan2(a:double(), c):sum():backward()
      gb.test.expect(b.grad):to_equal_bits(c.grad)
    end
  end)
end)

gb.test.finish()
