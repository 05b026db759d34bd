-- test_draws.lua - random numbers of the CUDA device: the same seed gives the numbers that the CPU draws, bit by bit
-- but for normals.
--
-- A normal is a product of a root and a cosine of our own polynomials; the compilers may fuse their products and sums
-- differently: a few spacings of the largest normal that float32 words can give (6.7).

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

-- fn(device) on both, from the same place in the stream.
local function both(fn)
  gb.manual_seed(11)
  local here = fn("cpu")
  gb.manual_seed(11)
  local there = fn("cuda")
  expect(there.device):to_be("cuda:0")
  return there:cpu(), here
end

local function same(fn)
  local there, here = both(fn)
  expect(there):to_equal_bits(here)
end

local floats = { "float64", "float32", "float16", "bfloat16" }

for _, dtype in ipairs(floats) do
  describe(dtype, function()
    it("uniform", function() same(function(d) return gb.rand(7, 13, { dtype = dtype, device = d }) end) end)
    it("uniform between bounds, in another layout", function()
      same(function(d) return gb.zeros(9, 11, { dtype = dtype, device = d }):t():clone():uniform_(-3,
        0.5):contiguous() end)
    end)
    it("normal", function()
      local there, here = both(function(d) return gb.randn(7, 13, { dtype = dtype, device = d }) end)
      local tolerance = dtype == "float64" and 1e-14 or dtype == "float32" and 2e-6 or dtype == "float16" and 2e-3 or
        2e-2
      expect(there:double()):to_be_close(here:double(), tolerance)
    end)
    it("bernoulli",
      function() same(function(d) return gb.full({ 50 }, 0.3, { dtype = dtype, device = d }):bernoulli() end) end)
    it("dropout and its gradient", function()
      same(function(d)
        local x = gb.arange(60, { dtype = "float32", device = d }):to(dtype):reshape(6, 10):requires_grad_()
        local y = F.dropout(x:t(), 0.4, true)
        y:backward(gb.ones(10, 6, { dtype = dtype, device = d }))
        return gb.cat({ y:detach():reshape(-1):cpu(), x.grad:reshape(-1):cpu() }, 1):to(d)
      end)
    end)
  end)
end

-- A thread draws four neighbours and moves them at once where memory allows.
describe("lengths and places", function()
  for _, n in ipairs { 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 130 } do
    it(tostring(n), function()
      for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
        same(function(d) return gb.rand(n, { dtype = dtype, device = d }) end)
        same(function(d) return F.dropout(gb.arange(n + 3, { dtype = "float32", device = d }):to(dtype):narrow(1, 2, n),
          0.4, true) end)
        same(function(d)
          local x = gb.zeros(n + 3, { dtype = dtype, device = d })
          x:narrow(1, 3, n):uniform_()
          return x
        end)
      end
    end)
  end
end)

describe("integers and orders", function()
  it("randint", function() same(function(d) return gb.randint(-5, 1000000, { 100 }, { device = d }) end) end)
  it("randint in uint8",
    function() same(function(d) return gb.randint(0, 256, { 99 }, { device = d, dtype = "uint8" }) end) end)
  it("randperm", function() same(function(d) return gb.randperm(1000, { device = d }) end) end)
  it("randperm of one and of none", function()
    same(function(d) return gb.randperm(1, { device = d }) end)
    same(function(d) return gb.randperm(0, { device = d }) end)
  end)
  it("multinomial with and without putting back", function()
    for _, replacement in ipairs { true, false } do
      same(function(d) return gb.arange(33, { dtype = "float32", device = d }):reshape(3, 11):multinomial(6,
        { replacement = replacement }) end)
    end
  end)
end)

describe("bad numbers are told by the next read", function()
  it("probabilities", function()
    expect(function() gb.tensor({ 0.5, 1.5 },
      { device = "cuda" }):bernoulli():tolist() end):to_fail("bernoulli: probabilities must be 0 to 1")
  end)
  it("weights", function()
    expect(function() gb.tensor({ 0.5, -1 },
      { device = "cuda" }):multinomial(1):tolist() end):to_fail("multinomial: weights must be finite and not negative")
    expect(function() gb.zeros(3, { device = "cuda" }):multinomial(1):tolist() end):to_fail("nothing but zeros")
    expect(function() gb.tensor({ 1.0, 0, 0 },
      { device = "cuda" }):multinomial(2):tolist() end):to_fail("only 1 weights that are not 0")
  end)
end)

gb.test.finish()
