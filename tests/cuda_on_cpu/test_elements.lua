-- test_elements.lua - element-by-element kernels of the CUDA device against the CPU: every op, dtype, layout and
-- broadcast.
--
-- Both devices compute in the same types from the same formulas; what may differ is whether a product and a sum are
-- fused, and the last bits of the C library's functions: 4 spacings of the dtype that is computed in, one more spacing
-- of a 16-bit result.

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local F = gb.nn.functional

local spacing = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }

local function near(a, b, dtype)
  if a == b or (a ~= a and b ~= b) then return true end
  if type(a) ~= "number" or not spacing[dtype] then return false end
  local least = dtype == "float16" and 2 ^ -24 or 1e-37
  return math.abs(a - b) <= 4 * spacing[dtype] * math.max(math.abs(a), math.abs(b)) + 4 * least
end

local function elements(t)
  local list = t:reshape(-1):tolist()
  return type(list) == "table" and list or { list }
end

-- fn on the CPU and on the device, and every element compared.
local function compare(fn, ...)
  local there = {}
  for i, x in ipairs { ... } do there[i] = gb.is_tensor(x) and x.ndim > 0 and x:to("cuda") or x end
  local want, got = fn(...), fn(table.unpack(there))
  if got.device ~= "cuda:0" then error("the result lies on " .. got.device) end
  if want.dtype ~= got.dtype then error(("dtype %s, the CPU gives %s"):format(got.dtype, want.dtype)) end
  if table.concat(want.shape, "x") ~= table.concat(got.shape, "x") then error("the shape differs") end
  local a, b = elements(want), elements(got:cpu())
  for i = 1, #a do
    if not near(a[i], b[i], want.dtype) then error(("element %d: %s, the CPU gives %s"):format(i, b[i], a[i])) end
  end
end

local floats, integers = { "float64", "float32", "float16", "bfloat16" }, { "int64", "int32", "int16", "int8", "uint8" }
local all = { table.unpack(floats) }
for _, d in ipairs(integers) do all[#all + 1] = d end

-- 5 x 37 numbers around zero, the special ones among them.
local function numbers(dtype, shift)
  local list = {}
  for i = 1, 185 do list[i] = ((i * 37 + shift * 11) % 41 - 20) / 4 end
  if spacing[dtype] then
    for i, v in ipairs { 0, -0.0, 1, -1, 1 / 0, -1 / 0, 0 / 0, 1e-6, 60000 } do list[i * 7 + shift] = v end
  else
    for i, v in ipairs(list) do list[i] = math.floor(v) end
  end
  return gb.tensor(list, { dtype = "float64" }):to(dtype):reshape(5, 37)
end

-- Every op of one tensor alone.
local unary = {}
for _, row in ipairs(gb.test.ops()) do
  if row.family == "elementwise" and row.public and row.signature == "x -> y" then unary[#unary + 1] = row.name end
end
local binary = { "add", "sub", "mul", "div", "maximum", "minimum", "atan2", "eq", "ne", "lt", "le", "gt", "ge",
  "logical_and", "logical_or", "logical_xor" }

for _, dtype in ipairs(all) do
  describe(dtype, function()
    local x, y = numbers(dtype, 0), numbers(dtype, 3)
    for _, name in ipairs(unary) do
      local fn = rawget(gb, name) or F[name]
      if pcall(fn, x) then
        it(name, function() compare(fn, x) end)
        it(name .. " of a transposed tensor", function() compare(function(a) return fn(a:t()) end, x) end)
      else
        it(name .. " is refused by both devices", function() gb.test.expect((pcall(fn, x:to("cuda")))):to_be(false) end)
      end
    end
    for _, name in ipairs(binary) do
      it(name, function() compare(function(a, b) return a[name](a, b) end, x, y) end)
      it(name .. " broadcast", function() compare(function(a, b) return a[name](a, b:select(1, 2):unsqueeze(1)) end, x,
        y) end)
      it(name .. " of other strides", function() compare(function(a, b) return a[name](a:t(), b:t():contiguous()) end,
        x, y) end)
      if not name:find("logical") then
        it(name .. " with a number", function() compare(function(a) return a[name](a, 3) end, x) end)
      end
      it(name .. " with a 0-d tensor",
        function() compare(function(a, b) return a[name](a, b:select(1, 1):select(1, 2)) end, x, y) end)
    end
    it("clamp", function() compare(function(a) return a:clamp(-1, 2) end, x) end)
    it("where", function() compare(function(a, b) return gb.where(a:gt(b), a, b) end, x, y) end)
    it("masked_fill", function() compare(function(a, b) return a:masked_fill(b:gt(0), 7) end, x, y) end)
    it("addcmul", function() compare(function(a, b) return a:addcmul(a, b) end, x, y) end)
    it("in place", function() compare(function(a, b) return a:clone():add_(b) end, x, y) end)
    for _, to in ipairs(all) do it("to " .. to, function() compare(function(a) return a:to(to) end, x) end) end
    it("to bool", function() compare(function(a) return a:bool() end, x) end)
  end)
end

describe("integers", function()
  for _, dtype in ipairs(integers) do
    local x, y = numbers(dtype, 0), numbers(dtype, 3):bitwise_or(1)
    for _, name in ipairs { "floor_divide", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor" } do
      it(name .. " " .. dtype, function() compare(function(a, b) return a[name](a, b) end, x, y) end)
    end
    it("pow " .. dtype, function() compare(function(a) return a:pow(3) end, x) end)
    it("bitwise_not " .. dtype, function() compare(function(a) return a:bitwise_not() end, x) end)
  end
  it("division by zero is told by the next read", function()
    local x = gb.arange(4, { device = "cuda" })
    local ok, why = pcall(function() return x:floor_divide(x):tolist() end)
    gb.test.expect(ok):to_be(false)
    gb.test.expect(why:find("floor_divide: integer division by zero", 1, true) ~= nil):to_be(true)
    gb.test.expect(x:add(1):tolist()[4]):to_be(4)
  end)
end)

describe("activations", function()
  for _, dtype in ipairs(floats) do
    local x = numbers(dtype, 0)
    it("gelu " .. dtype, function() compare(function(a) return F.gelu(a) end, x) end)
    it("gelu by tanh " .. dtype, function()
      compare(function(a)
        if a.device ~= "cpu" or not dtype:match("float16$") then return F.gelu(a, { approximate = "tanh" }) end
        -- The device's result of 16 bits is right where 1 + tanh has lost most of what it had in the CPU's float32.
        local d = a:to("float64")
        local u = (d + d * d * d * 0.044715) * math.sqrt(2 / math.pi)
        return (d * (u * 2):sigmoid()):to(dtype)
      end, x)
    end)
    it("silu " .. dtype, function() compare(function(a) return F.silu(a) end, x) end)
    it("elu " .. dtype, function() compare(function(a) return F.elu(a, 0.5) end, x) end)
    it("leaky_relu " .. dtype, function() compare(function(a) return F.leaky_relu(a, 0.1) end, x) end)
    it("softplus " .. dtype, function() compare(function(a) return F.softplus(a) end, x) end)
    it("pow " .. dtype, function() compare(function(a, b) return a:pow(b) end, x, numbers(dtype, 3)) end)
    it("remainder " .. dtype, function() compare(function(a) return a:remainder(1.5) end, x) end)
    it("lerp " .. dtype, function() compare(function(a, b) return a:lerp(b, 0.25) end, x, numbers(dtype, 3)) end)
  end
end)

describe("creation and copies", function()
  it("zeros, full, arange, eye", function()
    compare(function(x) return x:new_full({ 3, 5 }, 2.5) end, gb.zeros(1))
    compare(function(x) return gb.arange(0, 10, 0.1, { device = x.device }) end, gb.zeros(1))
    compare(function(x) return gb.eye(7, 9, { device = x.device }) end, gb.zeros(1))
  end)
  for _, dtype in ipairs(all) do
    it("a transposed copy of " .. dtype, function()
      compare(function(x) return x:permute(3, 1, 2):contiguous() end,
        gb.arange(3 * 40 * 70):to(dtype):reshape(3, 40, 70))
    end)
  end
  it("a copy into a view", function()
    compare(function(x) local y = x:clone(); y:narrow(2, 2, 3):copy_(x:narrow(2, 5, 3)); return y end,
      gb.arange(40):reshape(4, 10))
  end)
  it("an expanded tensor", function() compare(function(x) return x:unsqueeze(2):expand(4, 9, 10):contiguous() end,
    gb.arange(40):reshape(4, 10)) end)
  it("empty tensors", function() compare(function(x) return (x + 1):exp() end, gb.zeros(0, 3)) end)
end)

describe("devices", function()
  it("a tensor goes there and back in its layout", function()
    local x = gb.arange(24):reshape(2, 3, 4):transpose(1, 3)
    gb.test.expect(table.concat(x:to("cuda"):cpu():contiguous():view(-1):tolist(),
      " ")):to_be(table.concat(x:contiguous():view(-1):tolist(), " "))
  end)
  it("two devices in one op are an error", function()
    local ok, why = pcall(function() return gb.zeros(3) + gb.zeros(3, { device = "cuda" }) end)
    gb.test.expect(not ok and why:find("cuda:0", 1, true) ~= nil):to_be(true)
  end)
  it("the default device", function()
    gb.set_default_device("cuda")
    local x = gb.ones(3)
    gb.set_default_device("cpu")
    gb.test.expect(x.device):to_be("cuda:0")
    gb.test.expect(gb.ones(3).device):to_be("cpu")
  end)
end)

gb.test.finish()
