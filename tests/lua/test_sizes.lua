-- test_sizes.lua - every op at sizes 0 and 1, forward and backward, against PyTorch (tests/golden/sizes.py says how).

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")

local UP = 0.75

-- What PyTorch takes and ours refuses, with this text; and what is said otherwise in Lua, so that the sizes mean
-- something else.
local refused = {
  ["conv2d (same)"] = "only the batch may be empty", ["conv2d (valid)"] = "only the batch may be empty",
  ["conv1d"] = "only the batch may be empty", ["conv1d (relu)"] = "only the batch may be empty",
  ["conv1d (same)"] = "only the batch may be empty",
  ["conv2d (1x1)"] = "only the batch may be empty", adaptive_avg_pool2d = "only the batch may be empty",
  ["scaled_dot_product_attention"] = "head_dim, at least 1",
    ["scaled_dot_product_attention (causal)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (cross, scale)"] = "head_dim, at least 1",
    ["scaled_dot_product_attention (bool mask)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (float mask)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (gradient of a mask)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (gradient of a broadcast mask, causal)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (window)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (window, causal)"] = "head_dim, at least 1",
  take_along_dim = "out of range", ["take_along_dim (broadcast)"] = "out of range",
  slice = "out of range", -- positions 2 .. 8 of what has fewer
}
local otherwise = { expand = "a size of -1 keeps what is there; the reference names it" }

-- What a line says of the outputs or gradients, by its name there.
local function wanted(line, name)
  local list, shape = cases.elements(line.tensors[name])
  list.shape = table.concat(shape, "x")
  return list
end

local function cut(x, size, n)
  for d = 1, x.ndim do
    if x:size(d) == size then x = x:narrow(d, 1, n) end
  end
  return x:contiguous()
end

-- Within the growth in spacings of float32 at the element and at a quarter of the largest, or of the terms of a
-- gradient.
local function compare(got, want, growth, what, terms)
  local shape = table.concat(got.shape, "x")
  if shape ~= want.shape then error(("%s has shape %s, expected %s"):format(what, shape, want.shape)) end
  local list, largest = got:detach():to("float64"):reshape(-1):tolist(), terms or 0
  for _, x in ipairs(want) do
    if math.abs(x) < math.huge then largest = math.max(largest, math.abs(x)) end
  end
  for i = 1, #want do
    local a, b = list[i], want[i]
    local tolerance = math.abs(b) < math.huge and growth * cases.epsilon.float32 * (math.abs(b) + largest / 4) or 0
    if not (a == b or a ~= a and b ~= b or math.abs(a - b) <= tolerance) then
      error(("%s, element %d: %.9g, expected %.9g"):format(what, i, a, b))
    end
  end
end

local function check(case, line, size, n)
  local inputs = cases.inputs(case, "float32", { grad = false })
  for i = 0, case.inputs - 1 do
    if inputs[i] then inputs[i] = cut(inputs[i], size, n) end
    if case.differentiable[i] then inputs[i]:requires_grad_() end
  end
  local outputs = cases.run(case, inputs)
  for i, y in ipairs(outputs) do compare(y, wanted(line, "out" .. i - 1), case.growth, "output " .. i) end
  for i, g in pairs(cases.gradients(case, inputs, outputs, UP)) do
    compare(g, wanted(line, "grad" .. i), 2 * case.growth, "the gradient of input " .. i, UP)
  end
end

for _, line in ipairs(cases.read("sizes")) do
  local name, size, n = line.name:match("^(.*): (%d+) cut to (%d+)$")
  describe(name, function()
    it(("size %s cut to %s"):format(size, n), function()
      if otherwise[name] then return end
      local ok, why = pcall(check, cases.named[name], line, tonumber(size), tonumber(n))
      if not ok and not (refused[name] and why:find(refused[name], 1, true)) then error(why, 0) end
    end)
  end)
end

gb.test.finish()
