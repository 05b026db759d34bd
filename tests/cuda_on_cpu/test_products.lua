-- test_products.lua - matmul, linear, mlp and conv2d on the CUDA device against the CPU's, over dtypes, layouts,
-- batches and fused epilogues.
--
-- Both add up in float32 (float64 for float64) in another order, and round once: a sum of n products may differ by some
-- roundings of float32 and then by one of the result's dtype. Inputs are of the size of 1, sums of at most 200 of them
-- of the size of 20.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local tolerance = { float64 = 1e-14, float32 = 2e-6, float16 = 2e-3, bfloat16 = 1.6e-2 }
local dtypes = { "float64", "float32", "float16", "bfloat16" }

gb.manual_seed(7)

-- f of tensors on the CPU and of the same on the device: the same within the dtype's rounding. Returns both, and both
-- lists of tensors.
local function expect_alike(f, dtype, ...)
  local here, there = {}, {}
  for i, t in ipairs { ... } do
    here[i] = t:detach():clone():requires_grad_(true)
    there[i] = t:detach():to("cuda"):requires_grad_(true)
  end
  local a, b = f(table.unpack(here)), f(table.unpack(there))
  expect(b.device):to_be("cuda:0")
  expect(b.dtype):to_be(a.dtype)
  expect(b:detach():to("cpu")):to_be_close(a, tolerance[dtype])
  return a, b, here, there
end

-- The same of the gradients, relative to the largest of each.
local function expect_gradients_alike(f, dtype, ...)
  local a, b, here, there = expect_alike(f, dtype, ...)
  local grad = gb.randn(table.unpack(a.shape)):to(a.dtype)
  a:backward(grad)
  b:backward(grad:to("cuda"))
  for i in ipairs(here) do
    local scale = here[i].grad:to("float64"):abs():max():item()
    expect(there[i].grad:to("cpu"):to("float64") / scale):to_be_close(here[i].grad:to("float64") / scale,
      tolerance[dtype])
  end
end

local function randn(dtype, ...) return gb.randn(...):to(dtype) end

describe("matmul", function()
  it("batches of more matrices than the library takes at once", function()
    local product = function(a, b) return a:matmul(b) end
    expect_gradients_alike(product, "float32", gb.randn(40000, 2, 3), gb.randn(40000, 3, 2))
    -- broadcast, and each row in three parts
    expect_alike(product, "bfloat16", randn("bfloat16", 2, 66000, 1, 2), randn("bfloat16", 66000, 2, 1))
  end)
  for _, dtype in ipairs(dtypes) do
    it(dtype .. ": both layouts of both operands", function()
      local x, y = randn(dtype, 17, 40), randn(dtype, 40, 24)
      expect_gradients_alike(function(a, b) return a:matmul(b) end, dtype, x, y)
      expect_gradients_alike(function(a, b) return a:t():matmul(b) end, dtype, randn(dtype, 40, 17), y)
      expect_gradients_alike(function(a, b) return a:matmul(b:t()) end, dtype, x, randn(dtype, 24, 40))
      expect_gradients_alike(function(a, b) return a:t():matmul(b:t()) end, dtype, randn(dtype, 40, 17),
        randn(dtype, 24, 40))
    end)
    it(dtype .. ": strides that no library takes", function()
      local step = function(a) return a[{ {}, { 1, -1, 2 } }] end
      expect_alike(function(a, b) return step(a):matmul(b) end, dtype, randn(dtype, 9, 32), randn(dtype, 16, 5))
      expect_alike(function(a, b) return a:matmul(step(b)) end, dtype, randn(dtype, 9, 16), randn(dtype, 16, 10))
      expect_alike(function(a, b) return a:expand(6, 16):matmul(b) end, dtype, randn(dtype, 1, 16), randn(dtype, 16, 5))
    end)
    it(dtype .. ": vectors, batches, broadcast batches", function()
      local product = function(a, b) return a:matmul(b) end
      expect_alike(product, dtype, randn(dtype, 30), randn(dtype, 30))
      expect_alike(product, dtype, randn(dtype, 7, 30), randn(dtype, 30))
      expect_alike(product, dtype, randn(dtype, 30), randn(dtype, 30, 4))
      expect_alike(product, dtype, randn(dtype, 3, 7, 30), randn(dtype, 3, 30, 4))
      expect_alike(product, dtype, randn(dtype, 2, 3, 7, 30), randn(dtype, 30, 4))
      expect_alike(product, dtype, randn(dtype, 2, 1, 7, 30), randn(dtype, 3, 30, 4))
      expect_alike(function(a, b) return a:transpose(2, 3):matmul(b) end, dtype, randn(dtype, 2, 8, 3, 16),
        randn(dtype, 2, 3, 16, 5))
    end)
  end
  it("mixed dtypes promote", function()
    expect_alike(function(a, b) return a:matmul(b) end, "float32", randn("bfloat16", 5, 12), randn("float32", 12, 3))
    expect_alike(function(a, b) return a:matmul(b) end, "float32", randn("float16", 5, 12), randn("bfloat16", 12, 3))
  end)
  it("nothing to multiply", function()
    expect(gb.ones({ 3, 0 }, { device = "cuda" }):matmul(gb.ones({ 0, 2 },
      { device = "cuda" })):to("cpu")):to_be_close(gb.zeros(3, 2))
    expect(gb.ones({ 0, 4 }, { device = "cuda" }):matmul(gb.ones({ 4, 2 }, { device = "cuda" }))):to_have_shape(0, 2)
  end)
end)

describe("linear", function()
  for _, dtype in ipairs(dtypes) do
    for _, activation in ipairs { "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid" } do
      it(dtype .. " " .. activation, function()
        local function layer(x, w, b) return F.linear(x, w, b, { activation = activation }) end
        local x, w = randn(dtype, 3, 5, 24), randn(dtype, 16, 24) * 0.3
        expect_gradients_alike(layer, dtype, x, w:to(dtype), randn(dtype, 16))
        expect_gradients_alike(function(a, c) return layer(a, c) end, dtype, x, w:to(dtype))
        -- 13: no multiple of 8
        expect_gradients_alike(layer, dtype, randn(dtype, 6, 24), (randn(dtype, 13, 24) * 0.3):to(dtype),
          randn(dtype, 13))
      end)
    end
  end
  it("rows that lie unevenly, a bias with gaps", function()
    expect_alike(function(x, w, b) return F.linear(x:transpose(1, 2), w, b[{ { 1, -1, 2 } }]) end, "float32",
      randn("float32", 4, 3, 10), randn("float32", 6, 10),
      randn("float32", 12))
  end)
  it("a bias that does not begin at a multiple of 16 bytes, which the library's kernels would fault at", function()
    for _, dtype in ipairs(dtypes) do
      for _, activation in ipairs { "none", "relu", "gelu_tanh" } do
        local function layer(x, w, b) return F.linear(x, w, b[{ { 2, -1 } }], { activation = activation }) end
        expect_gradients_alike(layer, dtype, randn(dtype, 5, 24), (randn(dtype, 16, 24) * 0.3):to(dtype),
          randn(dtype, 17))
      end
    end
  end)
end)

describe("mlp", function()
  for _, dtype in ipairs(dtypes) do
    for _, activation in ipairs { "none", "gelu_tanh", "gelu", "relu", "silu", "tanh", "sigmoid" } do
      -- 30: rows that the library does not take beside a product
      for _, width in ipairs { 32, 30 } do
        it(("%s %s, hidden %d"):format(dtype, activation, width), function()
          -- the hidden layer is rounded between two sums: one more rounding of dtype, times the 32 terms that it goes
          -- through, over their mean
          local x, w1, w2 = randn(dtype, 2, 7, 16), (randn(dtype, width, 16) * 0.25):to(dtype),
            (randn(dtype, 16, width) * 0.18):to(dtype)
          local function layers(a, c1, b1, c2, b2) return F.mlp(a, c1, b1, c2, b2, { activation = activation }) end
          expect_gradients_alike(layers, dtype, x, w1, randn(dtype, width), w2, randn(dtype, 16))
        end)
      end
    end
  end
  it("computes the activated layer again where it is told to", function()
    for _, dtype in ipairs(dtypes) do
      for _, activation in ipairs { "gelu_tanh", "silu" } do
        local x, w1, w2 = randn(dtype, 2, 7, 16), (randn(dtype, 32, 16) * 0.25):to(dtype),
          (randn(dtype, 16, 32) * 0.18):to(dtype)
        local function layers(a, c1, b1, c2, b2)
          return F.mlp(a, c1, b1, c2, b2, { activation = activation, recompute = true })
        end
        expect_gradients_alike(layers, dtype, x, w1, randn(dtype, 32), w2, randn(dtype, 16))
      end
    end
  end)
  it("keeps it otherwise, if it is no large part of the device's memory", function()
    local function leaf(...) return gb.randn({ ... }, { device = "cuda" }):requires_grad_() end
    local x, w1, w2, alive = leaf(64, 8), leaf(128, 8), leaf(8, 128), {}
    local function kept(recompute)
      collectgarbage()
      local before = gb.cuda.memory_allocated()
      alive[#alive + 1] = F.mlp(x, w1, nil, w2, nil, { recompute = recompute })
      return gb.cuda.memory_allocated() - before
    end
    expect(kept(false) - kept(true)):to_be(64 * 128 * 4)
    expect(kept(nil)):to_be(kept(false))
    -- 8 GB / 256 is 32 MB: a hidden layer of 34 MB is not kept
    x, w1, w2 = leaf(4096, 1), leaf(2100, 1), leaf(1, 2100)
    expect(kept(false)):to_be(kept(true))
  end)
  for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
    it(dtype .. ": gradients of float32 weights are unrounded, and summed up", function()
      local x, up = randn(dtype, 3, 40, 24), randn(dtype, 3, 40, 16)
      local here = { gb.randn(32, 24):requires_grad_(), gb.randn(32):requires_grad_(),
        gb.randn(16, 32):requires_grad_(), gb.randn(16):requires_grad_() }
      local there = {}
      for i, t in ipairs(here) do there[i] = t:detach():to("cuda"):requires_grad_() end
      local scope = { dtype = dtype ~= "float32" and dtype or "bfloat16", enabled = dtype ~= "float32" }
      for _ = 1, 3 do
        for _, list in ipairs { here, there } do
          local a, g = x:to(list[1].device), up:to(list[1].device)
          local y = gb.amp.autocast(scope, function() return F.mlp(a, table.unpack(list)) end)
          y:backward(g)
        end
      end
      for i, t in ipairs(here) do
        expect(there[i].grad.dtype):to_be("float32")
        -- the hidden layer and its gradient are 16-bit numbers on both sides, made of sums in another order: some lie
        -- one rounding apart, of 120 rows
        local scale = t.grad:abs():max():item()
        expect(there[i].grad:to("cpu") / scale):to_be_close(t.grad / scale,
          dtype == "float32" and tolerance[dtype] or tolerance[dtype] / 4)
      end
    end)
  end
  for _, activation in ipairs { "gelu_tanh", "relu" } do
    it("one output, " .. activation, function() -- the gradient of the hidden layer is made of sums of one product
      local x, w1, w2 = randn("bfloat16", 14, 16), (randn("bfloat16", 32, 16) * 0.25):to("bfloat16"),
        (randn("bfloat16", 1, 32) * 0.18):to("bfloat16")
      local function layers(a, c1, d1, c2, d2) return F.mlp(a, c1, d1, c2, d2, { activation = activation }) end
      expect_gradients_alike(layers, "bfloat16", x, w1, randn("bfloat16", 32), w2, randn("bfloat16", 1))
    end)
    -- rows of zeros and a bias of zeros: ReLU's derivative at 0 is 0 here as on the CPU
    it("an argument of 0, " .. activation, function()
      local x, w1, w2 = randn("float32", 14, 16), gb.randn(32, 16) * 0.25, gb.randn(16, 32) * 0.18
      x[{ { 8, 14 } }]:zero_()
      local function layers(a, c1, d1, c2, d2) return F.mlp(a, c1, d1, c2, d2, { activation = activation }) end
      expect_gradients_alike(layers, "float32", x, w1, gb.zeros(32), w2, gb.randn(16))
    end)
  end
end)

describe("what the library does not take", function()
  it("runs apart, and is said where it is asked for", function()
    local script = [[
      local gb = require 'gibbous'
      local function leaf(...) return gb.randn({ ... }, { device = 'cuda', dtype = 'bfloat16' }):requires_grad_() end
      local function layers(width, out)
        return gb.nn.functional.mlp(leaf(6, 8), leaf(width, 8), leaf(width), leaf(out, width), leaf(out))
      end
      layers(WIDTH, OUT):sum():backward() ]]
    local function said(width, verbose, out)
      local text = script:gsub("%u%u%u+", { WIDTH = tostring(width), OUT = tostring(out or 8) })
      local pipe <close> = io.popen(('GIBBOUS_CUDA_VERBOSE=%d "%s" -e "%s" 2>&1'):format(verbose, gb.test.program(),
        text))
      return pipe:read("a")
    end
    expect(said(16, 1)):to_be("")
    expect(said(12, 0)):to_be("")
    local text = said(12, 1) -- no multiple of 8
    expect(text:match("GELU beside a product of %[6, 8%] by %[8, 12%] runs apart") ~= nil):to_be(true)
    expect(text:match("the derivative of GELU beside a product of %[6, 8%] by %[8, 12%] runs apart") ~= nil):to_be(true)
    local single = said(16, 1, 1) -- sums of one product
    local apart = "the derivative of GELU beside a product of %[6, 1%] by %[1, 16%] runs apart"
    expect(single:match(apart) ~= nil):to_be(true)
    expect(single:match("GELU beside a product of %[6, 8%]")):to_be(nil)
  end)
  it("is told once unasked where it is slow", function()
    local script = [[
      local gb = require 'gibbous'
      for size = 4, 6 do
        local function randn(...) return gb.randn({ ... }, { device = 'cuda' }) end
        gb.nn.functional.conv2d(randn(1, 2, size, size), randn(3, 2, 3, 3))
      end ]]
    local function said(environment)
      local pipe <close> = io.popen(('env -u GIBBOUS_CUDNN_ON_CPU %s "%s" -e "%s" 2>&1'):format(environment,
        gb.test.program(), script))
      return select(2, pipe:read("a"):gsub("gibbous: a convolution of [^\n]* runs on plain CUDA kernels", ""))
    end
    expect(said("-u GIBBOUS_CUDA_VERBOSE")):to_be(1)
    expect(said("GIBBOUS_CUDA_VERBOSE=0")):to_be(0)
    expect(said("GIBBOUS_CUDA_VERBOSE=1")):to_be(3)
  end)
end)

-- A library may make 0 of NaN where it fuses ReLU, so it is asked before its first use of each kind: NaN that was
-- swallowed would hide an overflow.
describe("NaN and a fused ReLU", function()
  local script = [[
    local gb = require 'gibbous'
    local F = gb.nn.functional
    local function leaf(...) return gb.randn({ ... }, { device = 'cuda', dtype = 'DTYPE' }) end
    local function seen(name, y) print(name, y:isnan():sum():item()) end
    local x, image = leaf(3, 8), leaf(2, 8, 5, 5)
    for round = 1, 2 do -- in the first one nothing is NaN
      for _, precision in ipairs { 'highest', 'high' } do
        gb.set_float32_matmul_precision(precision)
        seen('linear', F.linear(x, leaf(4, 8), nil, { activation = 'relu' }))
        seen('linear with bias', F.linear(x, leaf(4, 8), leaf(4), { activation = 'relu' }))
        seen('mlp', F.mlp(x, leaf(16, 8), leaf(16), leaf(4, 16), leaf(4), { activation = 'relu' }))
        seen('conv2d', F.conv2d(image, leaf(8, 8, 3, 3), nil, { padding = 1, activation = 'relu' }))
        seen('conv2d with bias', F.conv2d(image, leaf(8, 8, 3, 3), leaf(8), { padding = 1, activation = 'relu' }))
      end
      x[{ 2, 3 }], image[{ 1, 2, 3, 3 }] = 0 / 0, 0 / 0
    end ]]
  local function run(dtype, environment)
    local command =
      ('%s GIBBOUS_CUDA_VERBOSE=1 GIBBOUS_CUDA_PIECE=0 GIBBOUS_CUDNN_ON_CPU=1 "%s" -e "%s" 2>&1'):format(environment,
      gb.test.program(), (script:gsub("DTYPE", dtype)))
    local pipe <close> = io.popen(command)
    local values, apart = {}, {}
    for line in pipe:lines() do
      local name, count = line:match("^(%a[%a%d ]+)\t(%d+)$")
      if name then values[#values + 1] = name .. " " .. count
      -- of mlp's second layer
      elseif line:find("^gibbous: ") and not (dtype == "float64" and line:find("the bias", 1, true)) then
        apart[#apart + 1] = line
      end
    end
    return table.concat(values, ", "), apart
  end
  -- one row of x and its results; the 9 places of 8 channels that see the pixel
  local function counts(rows, pixels)
    local once = ("linear %d, linear with bias %d, mlp %d, conv2d %d, conv2d with bias %d"):format(rows, rows, rows,
      pixels, pixels)
    return once .. ", " .. once
  end
  local expected = counts(0, 0) .. ", " .. counts(4, 72)
  for _, dtype in ipairs(dtypes) do
    it(dtype .. ": a library that keeps NaN is left to it", function()
      local values, apart = run(dtype, "")
      local text = table.concat(apart, "\n")
      expect(values):to_be(expected)
      -- products of float64 have no epilogue
      if dtype == "float64" then expect(text:find("convolution", 1, true)):to_be(nil) else expect(text):to_be("") end
    end)
    it(dtype .. ": one that drops it is not, and that is said", function()
      local values, apart = run(dtype, "GIBBOUS_RELU_DROPS_NAN=1")
      expect(values):to_be(expected)
      expect(#apart):to_be(2 * 2 * 5) -- everything
      for _, line in ipairs(apart) do
        local where, why = line:match("^gibbous: ReLU beside a (%a+) of .* runs apart, which is slower: (.*)$")
        local library = dtype ~= "float64" or where == "convolution"
        expect(why):to_be(library and "the library makes 0 of NaN" or "cuBLASLt does not take its dtype or layout")
      end
    end)
  end
  it("what a captured step uses first is not fused there, nor later", function()
    local step = [[
      local gb = require 'gibbous'
      local x, w = gb.randn({ 3, 8 }, { device = 'cuda' }), gb.randn({ 4, 8 }, { device = 'cuda' })
      local calls = 0
      local function layer(v) return gb.nn.functional.linear(v, w, nil, { activation = 'relu' }) end
      local step = gb.cuda.graph(function(v)
        calls = calls + 1
        return calls == 1 and gb.nn.functional.linear(v, w) or layer(v)
      end, { x })
      step(x)
      step(x)
      local y, z = step(x), layer(x)
      print(y:eq(z):all():item(), y:gt(0):any():item()) ]]
    local pipe <close> = io.popen(('GIBBOUS_CUDA_VERBOSE=1 "%s" -e "%s" 2>&1'):format(gb.test.program(), step))
    local text = pipe:read("a")
    expect(select(2, text:gsub("its first use was in a graph", ""))):to_be(2)
    expect(text:match("true\ttrue\n") ~= nil):to_be(true)
  end)
  it("asking takes no memory that the program sees", function()
    local step = [[
      local gb = require 'gibbous'
      local x, w, image, kernel = table.unpack(gb.ones({ 4, 16, 8, 3, 3 }, { device = 'cuda' }):unbind())
      local function peak()
        gb.cuda.reset_peak_memory_stats()
        local y = gb.nn.functional.linear(x[1][1], w[1][1], nil, { activation = 'relu' })
        local z = gb.nn.functional.conv2d(image, kernel, nil, { padding = 1, activation = 'relu' })
        local most = gb.cuda.max_memory_allocated()
        y, z = nil, nil
        collectgarbage()
        return most
      end
      print(peak() == peak()) ]]
    local pipe <close> = io.popen(('GIBBOUS_CUDNN_ON_CPU=1 "%s" -e "%s" 2>&1'):format(gb.test.program(), step))
    expect(pipe:read("a"):match("%a+\n$")):to_be("true\n")
  end)
end)

describe("conv2d", function()
  for _, dtype in ipairs(dtypes) do
    it(dtype, function()
      local x, w, b = randn(dtype, 2, 6, 9, 8), (randn(dtype, 4, 6, 3, 3) * 0.2):to(dtype), randn(dtype, 4)
      expect_alike(function(a, c, d) return F.conv2d(a, c, d, { padding = 1 }) end, dtype, x, w, b)
      expect_alike(function(a, c, d) return F.conv2d(a, c, d, { padding = "same", dilation = 2 }) end, dtype, x, w, b)
      expect_alike(function(a, c) return F.conv2d(a, c:narrow(4, 1, 2), nil, { padding = "same" }) end, dtype, x, w)
      expect_alike(function(a, c, d) return F.conv2d(a, c, d,
        { padding = { 2, 1 }, stride = 2, dilation = { 1, 2 }, activation = "relu" }) end, dtype, x, w, b)
      expect_gradients_alike(function(a, c) return F.conv2d(a, c, nil, { stride = { 2, 1 }, padding = 1 }) end, dtype,
        x, w)
      expect_gradients_alike(function(a, c) return F.conv2d(a, c, nil, { groups = 2 }) end, dtype, x,
        (randn(dtype, 4, 3, 2, 3) * 0.3):to(dtype))
    end)
  end
  it("an empty batch", function()
    expect(F.conv2d(gb.ones({ 0, 2, 4, 4 }, { device = "cuda" }),
      gb.ones({ 3, 2, 3, 3 }, { device = "cuda" }))):to_have_shape(0, 3, 2, 2)
  end)
end)

gb.test.finish()
