-- test_windows.lua - the layers of convolution and pooling: what they pass on to their ops, padding modes, and errors.

local gb = require "gibbous"
local nn, F = gb.nn, gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local SHAPES = { { 2, 4, 7 }, { 2, 4, 7, 6 }, { 1, 4, 5, 6, 4 } }

-- x with places of its last dimensions repeated as at(i, n) says, for i from -before to n - 1 + after (all from 0).
local function extended(x, before, after, at)
  for d = 3, x.ndim do
    local parts, n = {}, x:size(d)
    for i = -before, n - 1 + after do parts[#parts + 1] = x:narrow(d, at(i, n) + 1, 1) end
    x = gb.cat(parts, d)
  end
  return x
end

local MODES = {
  reflect = function(i, n) return i < 0 and -i or i >= n and 2 * (n - 1) - i or i end,
  replicate = function(i, n) return i < 0 and 0 or i >= n and n - 1 or i end,
  circular = function(i, n) return i % n end,
}

describe("convolutions", function()
  for dims = 1, 3 do
    local class, op = nn["Conv" .. dims .. "d"], F["conv" .. dims .. "d"]
    local x = gb.randn(SHAPES[dims])
    it(class.__name .. " passes its options on", function()
      local layer = class(4, 6, 3, { stride = 2, padding = 1, dilation = 2, groups = 2, activation = "relu" })
      local options = { stride = 2, padding = 1, dilation = 2, groups = 2, activation = "relu" }
      local y = op(x, layer.weight, layer.bias, options)
      expect(layer(x)):to_equal_bits(y)
      expect(tostring(layer):find("4 -> 6, 3", 1, true) ~= nil):to_be(true)
    end)
    it(class.__name .. " keeps the size with padding = 'same'", function()
      for _, kernel in ipairs { 1, 2, 3, 4 } do
        local layer = class(4, 2, kernel, { padding = "same", dilation = kernel == 2 and 3 or 1 })
        local y = layer(x)
        for d = 3, x.ndim do expect(y:size(d)):to_be(x:size(d)) end
        expect(class(4, 2, kernel, { padding = "valid" })(x):size(3)):to_be(x:size(3) - kernel + 1)
      end
      expect(function() class(4, 2, 3, { padding = "same", stride = 2 }) end):to_fail("stride is 2")
      expect(function() op(x, gb.ones(class(4, 2, 3).weight.shape), nil, { padding = "same", stride = 2 }) end)
        :to_fail("stride is 2")
      expect(function() op(x, gb.ones(class(4, 2, 3).weight.shape), nil, { padding = "some" }) end)
        :to_fail("same|valid")
    end)
    for mode, at in pairs(MODES) do
      it(class.__name .. " pads with " .. mode, function()
        local layer = class(4, 2, 3, { padding = 2, padding_mode = mode })
        local y = op(extended(x, 2, 2, at), layer.weight, layer.bias)
        expect(layer(x)):to_be_close(y, 1e-5)
        local same = class(4, 2, 4, { padding = "same", padding_mode = mode })
        expect(same(x)):to_be_close(op(extended(x, 1, 2, at), same.weight, same.bias), 1e-5)
      end)
    end
    it(class.__name .. " refuses padding that the input cannot reflect", function()
      local layer = class(4, 2, 3, { padding = 9, padding_mode = "reflect" })
      expect(function() layer(x) end):to_fail("reflect padding of 9 does not fit dimension 3")
    end)
    it("ConvTranspose" .. dims .. "d passes its options on and undoes the size", function()
      local options = { stride = 2, padding = 1, output_padding = 1, groups = 2 }
      local layer = nn["ConvTranspose" .. dims .. "d"](4, 6, 3, options)
      local y = layer(x)
      expect(y):to_equal_bits(F["conv_transpose" .. dims .. "d"](x, layer.weight, layer.bias, options))
      for d = 3, x.ndim do expect(y:size(d)):to_be(2 * x:size(d)) end
    end)
    it("ConvTranspose" .. dims .. "d takes an output_padding of a stride and more below the dilation", function()
      local f, w = F["conv_transpose" .. dims .. "d"], gb.randn { 4, 2, table.unpack({ 3, 2, 2 }, 1, dims) }
      for padding = 0, 1 do
        local longer = f(x, w, nil, { stride = 2, dilation = 4, padding = padding, output_padding = 3 })
        local want = f(x, w, nil, { stride = 2, dilation = 4 })
        for d = 3, x.ndim do -- zeros at the end, less the padding at both
          local shape = want.shape
          shape[d] = 3
          want = gb.cat({ want, gb.zeros(shape) }, d)
          want = want:narrow(d, padding + 1, want:size(d) - 2 * padding)
        end
        expect(longer):to_be_close(want, 1e-5)
      end
    end)
    it("ConvTranspose" .. dims .. "d says what does not fit", function()
      local f = F["conv_transpose" .. dims .. "d"]
      local w = nn["ConvTranspose" .. dims .. "d"](4, 2, 3).weight
      expect(function() f(x, w, nil, { output_padding = 1 }) end):to_fail("output_padding is 1; it must be smaller")
      expect(function() f(x, w, nil, { output_padding = 3, stride = 2, dilation = 3 }) end):to_fail("must be smaller")
      expect(function() f(x:narrow(2, 1, 3), w) end):to_fail("weight expects 4 input channels, input has 3")
      expect(function() f(x, w, gb.ones(3)) end):to_fail("bias has shape 3, weight makes 2 channels")
      expect(function() f(x, w, nil, { padding = 40 }) end):to_fail("use less padding")
      expect(function() f(x, w, nil, { groups = 3 }) end):to_fail("groups = 3 must divide")
    end)
  end
end)

describe("poolings", function()
  for dims = 1, 3 do
    local x = gb.randn(SHAPES[dims])
    local function of(text) return (text:gsub("%%d", dims)) end
    it(of "layers of %d dimensions pass their options on", function()
      local most = { stride = 1, padding = 1, dilation = 2, ceil_mode = true, return_indices = true }
      local y, at = nn[of "MaxPool%dd"](2, most)(x)
      local want, want_at = F[of "max_pool%dd"](x, 2, most)
      expect(y):to_equal_bits(want)
      expect(at):to_equal_bits(want_at)
      local mean = { stride = 3, padding = 1, ceil_mode = true, count_include_pad = false }
      expect(nn[of "AvgPool%dd"](2, mean)(x)):to_equal_bits(F[of "avg_pool%dd"](x, 2, mean))
      expect(nn[of "AdaptiveAvgPool%dd"](3)(x)):to_equal_bits(F[of "adaptive_avg_pool%dd"](x, 3))
      local best, places = nn[of "AdaptiveMaxPool%dd"](3, { return_indices = true })(x)
      expect(x:flatten(3):gather(3, places:flatten(3)):view(best.shape)):to_equal_bits(best)
    end)
    it(of "max_unpool%dd puts back what was the largest", function()
      local y, at = F[of "max_pool%dd"](x, 2, { return_indices = true })
      local size = { table.unpack(x.shape, 3) }
      local back = F[of "max_unpool%dd"](y, at, 2, { output_size = size })
      expect(back.shape[3]):to_be(x.shape[3])
      expect(back:flatten(3):gather(3, at:flatten(3)):view(y.shape)):to_equal_bits(y)
      expect(back:ne(0):sum():item()):to_be(y:numel())
      expect(nn[of "MaxUnpool%dd"](2)(y, at, size)):to_equal_bits(back)
      expect(function() F[of "max_unpool%dd"](y, at, 2, { output_size = 40 }) end):to_fail("output_size is 40")
      expect(function() F[of "max_unpool%dd"](y, at * 0 - 1, 2) end):to_fail("out of range")
      expect(function() F[of "max_unpool%dd"](y, at + 10000, 2) end):to_fail("out of range")
      expect(function() F[of "max_unpool%dd"](y, at:narrow(2, 1, 1), 2) end):to_fail("they must be equal")
    end)
  end
  it("norms are those of each window", function()
    local x = gb.rand(1, 1, 4)
    local y = nn.LPPool1d(2, 2)(x):view(-1)
    local function length(i) return math.sqrt(x[{ 1, 1, i }]:item() ^ 2 + x[{ 1, 1, i + 1 }]:item() ^ 2) end
    expect(y):to_be_close({ length(1), length(3) }, 1e-6)
  end)
  it("a window of nothing but padding is an error", function()
    expect(function() F.max_pool2d(gb.ones(1, 1, 3, 3), 2, { padding = 1, dilation = 4 }) end)
      :to_fail("nothing but padding")
  end)
  it("takes the first of equal elements and the last NaN, with indices as without", function()
    local x = gb.tensor { 1, 2, 2, 0 / 0, 0 / 0, 3 }:view(1, 1, 6)
    local _, at = F.max_pool1d(x, 3, { return_indices = true })
    expect(at:view(-1)):to_be_close({ 1, 4 }, 0)
  end)
  it("keeps the layout of its input", function()
    local x = gb.randn(2, 5, 6, 7):permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3)
    local y, at = F.max_pool2d(x, 2, { return_indices = true })
    local want, want_at = F.max_pool2d(x:contiguous(), 2, { return_indices = true })
    expect(y:stride(2)):to_be(1)
    expect(y):to_be_close(want, 0)
    expect(at):to_be_close(want_at, 0)
  end)
end)

gb.test.finish()
