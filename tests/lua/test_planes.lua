-- test_planes.lua - batch_norm and group_norm of contiguous maps (NCHW), which go plane by plane, against the same
-- values with channels last, which go by rows, and against float64; and their bits for every number of threads.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
gb.set_default_device("cpu")

-- Images, channels and sides of maps: below the least plane, with and without rests of vectors, more than a tile, and
-- planes that are too large and few to go by planes.
local sizes = { { 2, 6, 3, 5 }, { 3, 6, 4, 4 }, { 2, 6, 7, 5 }, { 5, 6, 1, 97 }, { 2, 6, 40, 31 }, { 1, 2, 300, 301 } }
local growth = { float64 = 1e-12, float32 = 4e-5, bfloat16 = 0.05, float16 = 0.01 }

local ops = {
  batch_norm = function(x, weight, bias) return F.batch_norm(x, nil, nil, weight, bias, { training = true }) end,
  ["batch_norm by running statistics"] = function(x, weight, bias)
    local c = weight:numel()
    local mean, var = gb.arange(c, { dtype = "float32" }) * 0.1, gb.arange(c, { dtype = "float32" }) * 0.2 + 0.5
    return F.batch_norm(x, mean, var, weight, bias)
  end,
  ["group_norm of 2"] = function(x, weight, bias) return F.group_norm(x, 2, weight, bias, { out = "autocast" }) end,
}

local function leaf(x) return x:detach():clone():requires_grad_(true) end

-- The result and all gradients of an op, in float64.
local function run(op, x, grad, weight, bias)
  x, weight, bias = x:detach():requires_grad_(true), leaf(weight), leaf(bias)
  local y = op(x, weight, bias)
  y:backward(grad:to(y.dtype))
  local made = { y, x.grad, weight.grad, bias.grad }
  for i, t in ipairs(made) do made[i] = t:to("float64"):contiguous() end
  return made
end

local function channels_last(x) return x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 }) end

local function values(size, dtype)
  local x = gb.randn(size) * 2 + 0.5
  return x:to(dtype), gb.randn(size):to(dtype), gb.randn(size[2]), gb.randn(size[2])
end

describe("norms of planes", function()
  for name, op in pairs(ops) do
    for dtype, most in pairs(growth) do
      it(("%s of %s is what rows of channels give"):format(name, dtype), function()
        gb.manual_seed(3)
        for _, size in ipairs(sizes) do
          local x, grad, weight, bias = values(size, dtype)
          local wide = dtype == "float64"
          if wide then weight, bias = weight:to(dtype), bias:to(dtype) end
          local planes = run(op, x, grad, weight, bias)
          local rows = run(op, channels_last(x), channels_last(grad), weight, bias)
          local exact = run(op, x:to("float64"), grad:to("float64"), weight:to("float64"), bias:to("float64"))
          for i, want in ipairs(exact) do
            local scale = want:abs():max():item() + 1
            expect((planes[i] - rows[i]):abs():max():item() <= most * scale):to_be(true)
            expect((planes[i] - want):abs():max():item() <= most * scale):to_be(true)
          end
        end
      end)
    end

    it(name .. " has the same bits for every number of threads", function()
      local threads = gb.get_num_threads()
      gb.manual_seed(4)
      local x, grad, weight, bias = values({ 4, 24, 37, 41 }, "float32")
      local first
      for _, count in ipairs { 1, 3 } do
        gb.set_num_threads(count)
        local made = run(op, x, grad, weight, bias)
        first = first or made
        for i, t in ipairs(made) do expect(t):to_equal_bits(first[i]) end
      end
      gb.set_num_threads(threads)
    end)
  end

  it("finds the spread about a mean far from 0, of planes that lie apart, and of constant ones", function()
    local function spread(x) -- of the whole x, by what group_norm makes of it
      local y = F.group_norm(x, 1, nil, nil, { eps = 0, out = "autocast" })
      return (x:max() - x:min()):item() / (y:max() - y:min()):item()
    end
    for _, side in ipairs { 20, 90 } do
      local x = gb.randn(1, 2, side, side) + 1e4
      local steps = gb.randn(1, 2, side, side) * 1e-3
      steps[{ 1, 1 }] = steps[{ 1, 1 }] + 1000
      for _, t in ipairs { x, steps } do
        local want = t:to("float64"):var(nil, { correction = 0 }):sqrt():item()
        expect(math.abs(spread(t) - want) <= 1e-5 * want):to_be(true)
      end
    end
    local y = F.group_norm(gb.full({ 1, 2, 40, 31 }, 0.1, { dtype = "float32" }), 1)
    expect(y):to_equal_bits(gb.zeros(1, 2, 40, 31))
  end)

  it("finds the spread of planes whose first elements lie far from all others", function()
    local x = gb.randn(4, 3, 56, 56) * 0.1 + 100
    x:reshape(4, 3, -1):narrow(3, 1, 32):zero_()
    for _, dtype in ipairs { "float32", "float64" } do
      local mean, var = gb.zeros(3), gb.zeros(3)
      F.batch_norm(x:to(dtype), mean, var, nil, nil, { training = true, momentum = 1 })
      local rows = x:double():permute { 2, 1, 3, 4 }:reshape(3, -1)
      expect(var:double()):to_be_close(rows:var(2), 1e-6)
      expect(mean:double()):to_be_close(rows:mean(2), 1e-6)
    end
    local y = F.group_norm(x, 3, nil, nil, { out = "autocast" })
    expect(y:double()):to_be_close(F.group_norm(x:double(), 3), 3e-6)
  end)
  it("gives many units, of which the next is read while one is written, the bits of each alone", function()
    local threads = gb.get_num_threads()
    gb.set_num_threads(1)
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local n = dtype == "float32" and 132 or 264
      local x, grad = gb.randn(n, 8, 63, 64):to(dtype), gb.randn(n, 8, 63, 64):to(dtype)
      local function slopes(t, g)
        t = t:detach():requires_grad_(true)
        local y = F.group_norm(t, 4, nil, nil, { out = "autocast" })
        y:backward(g:to(y.dtype))
        return y, t.grad
      end
      local y, dx = slopes(x, grad)
      for _, i in ipairs { 1, 2, 17, n } do
        local one, slope = slopes(x[{ { i, i } }]:clone(), grad[{ { i, i } }]:clone())
        expect(y[{ { i, i } }]):to_equal_bits(one)
        expect(dx[{ { i, i } }]):to_equal_bits(slope)
      end
    end
    gb.set_num_threads(threads)
  end)

  it("takes planes with infinities and NaN as rows of channels do", function()
    for _, op in pairs(ops) do
      local x, grad, weight, bias = values({ 2, 4, 5, 7 }, "float32")
      x[{ 1, 2, 3, 4 }], x[{ 2, 3, 1, 1 }], grad[{ 1, 1, 1, 7 }] = math.huge, 0 / 0, math.huge
      local planes, rows = run(op, x, grad, weight, bias), run(op, channels_last(x), channels_last(grad), weight, bias)
      for i in ipairs(planes) do
        expect(planes[i]:isnan():equal(rows[i]:isnan())):to_be(true)
        expect(planes[i]:isinf():equal(rows[i]:isinf())):to_be(true)
      end
    end
  end)
end)

gb.test.finish()
