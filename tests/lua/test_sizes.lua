-- test_sizes.lua - every op at sizes 0 and 1, forward and backward, against PyTorch (tests/golden/sizes.py says how).

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")
local tensors, metadata = gb.load("tests/golden/sizes.safetensors")
local rows = gb.io.json_decode(metadata.rows)
local numbers, at = tensors.numbers:tolist(), 0

local UP = 0.75

-- What PyTorch takes and ours refuses, with this text; and what is said otherwise in Lua, so that the sizes mean something else.
local refused = {
  ["conv2d (1x1)"] = "only the batch may be empty", adaptive_avg_pool2d = "only the batch may be empty",
  ["scaled_dot_product_attention"] = "head_dim, at least 1", ["scaled_dot_product_attention (causal)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (cross, scale)"] = "head_dim, at least 1", ["scaled_dot_product_attention (bool mask)"] = "head_dim, at least 1",
  ["scaled_dot_product_attention (float mask)"] = "head_dim, at least 1",
  slice = "out of range", -- positions 2 .. 8 of what has fewer
}
local otherwise = { expand = "a size of -1 keeps what is there; the reference names it" }

-- The next numbers of the file, as many as a tensor of this shape has.
local function take(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  at = at + n
  return { shape = table.concat(shape, "x"), table.unpack(numbers, at - n + 1, at) }
end

local function cut(x, size, n)
  for d = 1, x.ndim do
    if x:size(d) == size then x = x:narrow(d, 1, n) end
  end
  return x:contiguous()
end

-- Within the growth in spacings of float32 at the element and at a quarter of the largest, or of the terms of a gradient.
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
    if not (a == b or a ~= a and b ~= b or math.abs(a - b) <= tolerance) then error(("%s, element %d: %.9g, expected %.9g"):format(what, i, a, b)) end
  end
end

local function check(case, row, outs, grads)
  local inputs = cases.inputs(case, "float32", { grad = false })
  for i = 0, case.inputs - 1 do
    if inputs[i] then inputs[i] = cut(inputs[i], row.size, row.n) end
    if case.differentiable[i] then inputs[i]:requires_grad_() end
  end
  local outputs = cases.run(case, inputs)
  for i, y in ipairs(outputs) do compare(y, outs[i], case.growth, "output " .. i) end
  for i, g in pairs(cases.gradients(case, inputs, outputs, UP)) do compare(g, grads[tostring(i)], 2 * case.growth, "the gradient of input " .. i, UP) end
end

for _, row in ipairs(rows) do
  local case, outs, grads = cases.list[row.case + 1], {}, {}
  for i, shape in ipairs(row.outs) do outs[i] = take(shape) end
  for _, i in ipairs(case.grad) do
    if row.grads[tostring(i)] then grads[tostring(i)] = take(row.grads[tostring(i)]) end
  end
  describe(case.name .. " " .. case.id, function()
    it(("size %d cut to %d"):format(row.size, row.n), function()
      if otherwise[case.name] then return end
      local ok, why = pcall(check, case, row, outs, grads)
      if not ok and not (refused[case.name] and why:find(refused[case.name], 1, true)) then error(why, 0) end
    end)
  end)
end

gb.test.finish()
