-- test_autocast_ops.lua - for every op of every class: under autocast it is bit-equal, forward and in the gradient of
-- each float input, to the same op with its inputs cast by hand. Gradients of float32 leaves cast for a 16-bit op leave
-- in float32, unrounded, so those are compared within one rounding of the 16-bit dtype; gradients of results
-- (activations) are compared bit by bit.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp = gb.amp
local cases = dofile("tests/lua/cases.lua")

local row_of = {}
for _, row in ipairs(gb.test.ops()) do row_of[row.name] = row end

-- A result, not a leaf: what a layer before would give.
local function activation(x) return x:mul(1) end

-- The dtype that the class's rule gives the inputs.
local function rule(class, lower, inputs)
  if class == "lower" then return lower end
  if class == "float32" then return "float32" end
  if class ~= "widest" then return nil end
  local dtypes = {}
  for _, x in pairs(inputs) do
    if x:is_floating_point() then dtypes[x.dtype] = true end
  end
  local first = next(dtypes)
  if next(dtypes, first) then return "float32" end
  return first
end

-- Run forward and backward from given leaves; hand: the dtype to cast each floating input to, or nil.
local function run(case, leaves, hand)
  local inputs = {}
  for i = 0, case.inputs - 1 do
    local x = leaves[i]
    if x and case.differentiable[i] then x = activation(x) end
    if x and hand and x:is_floating_point() then x = x:to(hand) end
    inputs[i] = x
  end
  return cases.run(case, inputs)
end

local function upstream(case, outputs)
  local total, k = nil, 0
  for _, y in ipairs(outputs) do
    if y:is_floating_point() and y.requires_grad then
      local part = y:to("float64"):mul(cases.stored(case, "up", k)):sum()
      k = k + 1
      total = total and total + part or part
    end
  end
  return total
end

local function check(case, class, lower, from)
  local function leaves() return cases.inputs(case, from) end
  local a, b = leaves(), leaves()
  local auto, total
  amp.autocast({ dtype = lower }, function()
    local inputs = {}
    for i = 0, case.inputs - 1 do
      local x = a[i]
      if x and case.differentiable[i] then x = activation(x) end
      inputs[i] = x
    end
    auto = cases.run(case, inputs)
  end)
  local by_hand = run(case, b, rule(class, lower, b))
  for i = 1, #by_hand do expect(auto[i]):to_equal_bits(by_hand[i]) end
  total = upstream(case, auto)
  if not total then return end
  local other = upstream(case, by_hand)
  for i = 0, case.inputs - 1 do
    if case.differentiable[i] then
      local ga = gb.grad(total, { a[i] }, { retain_graph = true, allow_unused = true })[1]
      local gh = gb.grad(other, { b[i] }, { retain_graph = true, allow_unused = true })[1]
      if ga or gh then expect(ga):to_equal_bits(gh) end
    end
  end
end

for _, lower in ipairs { "bfloat16", "float16" } do
  for _, from in ipairs { "float32", lower } do
    describe(("autocast %s, inputs %s"):format(lower, from), function()
      for _, case in ipairs(cases.list) do
        local class = row_of[case.op].autocast
        if class == "banned" then
          it(case.name .. " is banned", function()
            expect(function() amp.autocast({ dtype = lower },
              function() cases.run(case, cases.inputs(case, from)) end) end):to_fail("with_logits")
          end)
        else
          it(case.name, function() check(case, class, lower, from) end)
        end
      end
    end)
  end
end

describe("float64 is left alone", function()
  for _, case in ipairs(cases.list) do
    if row_of[case.op].autocast ~= "banned" then
      it(case.name, function()
        local plain = cases.run(case, cases.inputs(case, "float64"))
        local auto = amp.autocast({ dtype = "float16" },
          function() return cases.run(case, cases.inputs(case, "float64")) end)
        for i = 1, #plain do expect(auto[i]):to_equal_bits(plain[i]) end
      end)
    end
  end
end)

gb.test.finish()
