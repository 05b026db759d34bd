-- test_fft.lua - Fourier transforms: sizes of every kind against sums of products, rows that leave each other alone,
-- signals that come back, windows, and errors. Golden numbers stand in tests/golden/ops/fft.jsonl.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- The transform as a matrix: [n, n / 2 + 1] of cosines, and of negative sines, with exact multiples of a turn.
local function matrices(n)
  local j, k = gb.arange(n):unsqueeze(2), gb.arange(n // 2 + 1):unsqueeze(1)
  local angle = (j * k % n):double() * (2 * math.pi / n)
  return angle:cos(), -angle:sin()
end

local function by_products(x)
  local c, s = matrices(x.shape[x.ndim])
  return gb.stack({ x:matmul(c), x:matmul(s) }, -1)
end

local function largest(x) return x:abs():amax():item() end

describe("rfft", function()
  for _, n in ipairs { 1, 2, 6, 17, 30, 64, 77, 97, 100, 210, 243, 254, 256, 262, 375, 400, 509, 625, 768, 1000,
    1021 } do
    for _, rows in ipairs { 3, 19 } do
      it(("of %d rows of %d"):format(rows, n), function()
        local x = gb.randn(rows, n, { dtype = "float64" })
        local want = by_products(x)
        local scale = largest(want)
        expect(largest(x:rfft() - want) / scale < 1e-13):to_be(true)
        expect(largest(x:rfft():irfft(n) - x) < 1e-12):to_be(true)
        local narrow = x:float()
        expect(largest(narrow:rfft():double() - by_products(narrow:double())) / scale < 2e-6):to_be(true)
      end)
    end
  end
  it("is the same whatever lies beside a row", function()
    local x = gb.randn(20, 50)
    local y = x:rfft()
    local other = x:clone()
    other:narrow(1, 2, 19):fill_(0 / 0)
    expect((other:rfft():narrow(1, 1, 1) - y:narrow(1, 1, 1)):abs():amax():item()):to_be(0)
    expect(other:rfft():narrow(1, 1, 1):isfinite():all():item()):to_be(true)
    expect(other:rfft():narrow(1, 2, 19):isnan():any():item()):to_be(true)
  end)
  it("is the same with any number of threads", function()
    local x, results = gb.randn(301, 120), {}
    for i, threads in ipairs { 1, 3 } do
      gb.set_num_threads(threads)
      results[i] = x:rfft()
    end
    expect((results[1] - results[2]):abs():amax():item()):to_be(0)
  end)
  it("is the inverse's inverse along any dim, with any norm", function()
    for _, norm in ipairs { "backward", "ortho", "forward" } do
      local x = gb.randn(4, 9, 5, { dtype = "float64" })
      local y = x:rfft(nil, 2, { norm = norm })
      expect(table.concat(y.shape, " ")):to_be("4 5 5 2")
      expect(largest(y:irfft(9, 2, { norm = norm }) - x) < 1e-13):to_be(true)
    end
  end)
  it("takes integers as floats", function()
    expect(gb.arange(5):rfft().dtype):to_be("float32")
  end)
  it("takes half precision, computed in float32", function()
    local x = gb.randn(3, 16):half()
    local y = x:rfft()
    expect(y.dtype):to_be("float16")
    expect(largest(y:float() - x:float():rfft()) < 0.02):to_be(true)
  end)
  it("keeps float32 under autocast", function()
    local x = gb.randn(3, 16)
    gb.amp.autocast("bfloat16", function()
      expect(x:rfft().dtype):to_be("float32")
    end)
  end)
  it("says what is wrong", function()
    local x = gb.randn(3, 4)
    expect(function() x:rfft(0) end):to_fail("n")
    expect(function() x:rfft(nil, 3) end):to_fail("rfft: dim 3 does not exist")
    expect(function() gb.zeros(3, 0):rfft() end):to_fail("rfft: dimension 2 of x has no elements; give n")
    expect(function() gb.ones({}):rfft() end):to_fail("rfft: 'x' must have 1 to 7 dimensions, it has 0")
    expect(function() x:rfft(nil, 1, { norm = "half" }) end):to_fail("norm")
    expect(function() x:irfft() end):to_fail("irfft: x has shape")
    expect(function() gb.randn(1, 2):irfft() end):to_fail("of which no signal comes; give n")
    expect(function() gb.randn(3, 2):irfft(4, 2) end):to_fail("irfft: dim 2 has the real and imaginary parts")
  end)
end)

describe("stft", function()
  it("is rfft of windows", function()
    local x, window = gb.randn(50, { dtype = "float64" }), gb.hann_window(16, { dtype = "float64" })
    local y = x:stft(16, 5, 16, window, { center = false })
    expect(table.concat(y.shape, " ")):to_be("9 7 2")
    local third = (x:narrow(1, 11, 16) * window):rfft()
    expect(largest(y:select(2, 3) - third) < 1e-14):to_be(true)
  end)
  it("comes back as the signal", function()
    for _, sided in ipairs { true, false } do
      local x, window = gb.randn(3, 100, { dtype = "float64" }), gb.hamming_window(20, { dtype = "float64" })
      local options = { onesided = sided, normalized = true }
      local y = x:stft(24, 6, 20, window, options)
      expect(y.shape[2]):to_be(sided and 13 or 24)
      options.length = 100
      expect(largest(y:istft(24, 6, 20, window, options) - x) < 1e-12):to_be(true)
    end
  end)
  it("says what is wrong", function()
    local x = gb.randn(20)
    expect(function() x:stft(64, { center = false }) end):to_fail("fewer than n_fft = 64")
    expect(function() x:stft(3) end):to_fail("hop_length is n_fft / 4 = 0")
    expect(function() x:stft(8, 2, 9) end):to_fail("win_length is 9, n_fft 8")
    expect(function() x:stft(8, 2, 8, gb.ones(7)) end):to_fail("window has shape")
    expect(function() gb.randn(5, 6, 2):istft(12) end):to_fail("istft: x has shape")
    expect(function() gb.randn(5, 6, 2):istft(8, 4, 8, gb.zeros(8)) end):to_fail("no window covers")
    expect(function() gb.randn(5, 1, 2):istft(8) end):to_fail("leave nothing")
  end)
end)

describe("windows", function()
  local function list(x) return x:tolist() end
  local function close(x, want)
    for i, v in ipairs(list(x)) do
      if math.abs(v - want[i]) > 1e-15 then error(("element %d is %.17g, not %.17g"):format(i, v, want[i]), 2) end
    end
    expect(x:numel()):to_be(#want)
  end
  local wide = { dtype = "float64" }
  it("are PyTorch's", function()
    close(gb.hann_window(4, wide), { 0, 0.5, 1, 0.5 })
    close(gb.hann_window(5, false, wide), { 0, 0.5, 1, 0.5, 0 })
    close(gb.hamming_window(4, wide), { 0.08, 0.54, 1, 0.54 })
    close(gb.hamming_window(2, true, 0.5, 0.25, wide), { 0.25, 0.75 })
    close(gb.blackman_window(4, wide), { 0, 0.34, 1, 0.34 })
    close(gb.bartlett_window(4, wide), { 0, 0.5, 1, 0.5 })
    local kaiser = list(gb.kaiser_window(5, false, 2.5, wide))
    expect(kaiser[3]):to_be(1)
    expect(math.abs(kaiser[1] - 1 / 3.2898391440501231) < 1e-12):to_be(true)
  end)
  it("of one sample are 1, of none nothing", function()
    for _, name in ipairs { "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window" } do
      close(gb[name](1, wide), { 1 })
      close(gb[name](0, wide), {})
      expect(gb[name](3).dtype):to_be("float32")
      expect(function() gb[name](-1) end):to_fail("window_length is -1")
    end
  end)
end)

gb.test.finish()
