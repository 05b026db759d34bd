-- test_lanes.lua - kernels that move several elements at once, against the CPU: lengths around every width, rows and
-- views that begin anywhere, and operands of different dtypes.
--
-- An element computed alone and one computed in a strip go through the same formula: where nothing is summed, both
-- devices give the same bits, but for the last one of functions of the C library.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local lengths = {}
for n = 0, 40 do lengths[#lengths + 1] = n end
for _, n in ipairs { 63, 64, 65, 127, 128, 129, 130, 257 } do lengths[#lengths + 1] = n end

-- n numbers from -5 to 5 that every dtype but uint8 holds exactly; of which the first `from` are cut off, so that the
-- rest begins anywhere.
local function numbers(n, dtype, from)
  local list = {}
  for i = 1, n + from do list[i] = (i * 37 + n) % 41 / 4 - 5 end
  local t = gb.tensor(list, { dtype = "float64" })
  if dtype == "uint8" then t = t:abs() end
  return t:to(dtype):narrow(1, from + 1, n)
end

-- The same on the device, at the same distance from aligned memory: the whole is copied and the view taken again.
local function there(n, dtype, from)
  local list = numbers(n + from, dtype, 0):to("cuda")
  list:narrow(1, from + 1, n):copy_(numbers(n, dtype, from):to("cuda"))
  return list:narrow(1, from + 1, n)
end

-- fn of views on both devices; the results must have the same bits.
local function same(fn, ...)
  local here, far = {}, {}
  for i, of in ipairs { ... } do
    here[i] = numbers(table.unpack(of))
    far[i] = there(table.unpack(of))
  end
  expect(fn(table.unpack(far)):cpu()):to_equal_bits(fn(table.unpack(here)))
end

describe("elements of a length", function()
  local dtypes = { "float32", "float16", "bfloat16", "uint8", "bool" }
  for _, n in ipairs(lengths) do
    it(("%d, cast"):format(n), function()
      for _, from in ipairs(dtypes) do
        for _, to in ipairs { "float32", "float16", "bfloat16", "uint8", "bool", "float64", "int64" } do
          for first = 0, 3 do
            if not (to == "uint8" and from ~= "uint8" and from ~= "bool") then
              same(function(x) return x:to(to) end, { n, from, first })
            end
          end
        end
      end
    end)
    it(("%d, of two dtypes, each of which begins anywhere"):format(n), function()
      for _, a in ipairs(dtypes) do
        for _, b in ipairs { "float32", "float16", "bfloat16" } do
          same(function(x, y) return x + y end, { n, a, 1 }, { n, b, 2 })
          same(function(x, y) return x:gt(y) end, { n, a, 3 }, { n, b, 0 })
          same(function(x, y) return gb.where(x:gt(0), y, 2.5) end, { n, a, 1 }, { n, b, 1 })
        end
      end
    end)
    it(("%d, in place and into a view"):format(n), function()
      for first = 0, 9 do
        same(function(x) return x:mul_(3) end, { n, "float32", first })
        same(function(x) return x:mul_(3) end, { n, "bfloat16", first })
        same(function(x, y) return x:copy_(y) end, { n, "float16", first }, { n, "float32", 1 })
      end
    end)
    it(("%d, in rows"):format(n), function()
      for _, dtype in ipairs { "float32", "float16", "uint8" } do
        -- a row for all
        same(function(x, y) return x:reshape(3, n) + y:float() end, { 3 * n, dtype, 1 }, { n, "float32", 2 })
        -- a number a row
        same(function(x, y) return x:reshape(3, n) * y:unsqueeze(2):float() end, { 3 * n, dtype, 1 },
          { 3, "float16", 0 })
        -- rows of a view
        same(function(x) return x:reshape(3, n + 5):narrow(2, 3, n):neg() end, { 3 * (n + 5), "float32", 1 })
        same(function(x) return x:reshape(3, n + 5):narrow(2, 3, n):float() end, { 3 * (n + 5), dtype, 1 })
        -- as it is stored
        same(function(x) return x:reshape(3, n + 8):narrow(2, 5, n):contiguous() end, { 3 * (n + 8), dtype, 0 })
        same(function(x, y) return gb.cat({ x:reshape(3, n), y:reshape(3, 4) }, 2) end, { 3 * n, dtype, 1 },
          { 12, dtype, 0 })
        same(function(x) return x:reshape(n, 3):t():float() + 1 end, { 3 * n, dtype, 0 })
      end
    end)
  end
end)

-- Sums of a row are added in another order than on the CPU: what that makes grows with the root of the length, and an
-- exponential or a division by a deviation passes it on a few times larger. 16-bit results are rounded once more.
local function close(got, want, n)
  local spacing = ({ float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 })[want.dtype]
  local least = 8 * 2 ^ -23 * (4 + math.sqrt(n))
  local a, b = got:cpu():float(), want:float()
  local over = (a - b):abs():sub(b:abs():clamp(1):mul(math.max(least, 2 * spacing)))
  expect(got.dtype):to_be(want.dtype)
  expect(over:le(0):all():item()):to_be(true)
end

local F = gb.nn.functional

-- fn of rows of n on both devices, forward and backward; the rows begin `from` elements into memory, and lie `apart`
-- elements apart.
local function rows(fn, count, n, dtype, from, apart, ...)
  local results = {}
  for k, device in ipairs { "cpu", "cuda" } do
    local whole = numbers(from + count * (n + apart), dtype, 0):to(device)
    local x = whole:narrow(1, from + 1, count * (n + apart)):reshape(count, n + apart):narrow(2, 1,
      n):detach():requires_grad_()
    local list = { x }
    for i, of in ipairs { ... } do
      list[i + 1] = numbers(of, "float32", 0):mul(0.1):add(1):to(device):requires_grad_()
    end
    local y = fn(table.unpack(list))
    local seed = numbers(y:numel(), "float32", 0):add(0.3):to(y.dtype):to(device):reshape(y.shape)
    y:backward(seed)
    results[k] = { y:detach() }
    for _, t in ipairs(list) do table.insert(results[k], t.grad) end
  end
  for i, want in ipairs(results[1]) do close(results[2][i], want, math.max(n, count)) end
end

local longer = { 509, 513, 768, 1021, 1022, 1024, 8190, 8192, 8193, 50257 }
for _, n in ipairs(longer) do lengths[#lengths + 1] = n end

describe("rows of a length", function()
  for _, n in ipairs(lengths) do
    if n > 0 then
      local count = n > 8000 and 2 or 5
      it(tostring(n), function()
        for i, place in ipairs { { 0, 0 }, { 1, 0 }, { 2, 3 } } do
          local dtype, from, apart = ({ "float32", "bfloat16", "float16" })[(n + i) % 3 + 1], table.unpack(place)
          rows(function(x) return F.softmax(x, 2) end, count, n, dtype, from, apart)
          rows(function(x) return F.log_softmax(x, 2) end, count, n, dtype, from, apart)
          if n > 1 then
            rows(function(x, w, b) return F.layer_norm(x, { n }, w, b) end, count, n, dtype, from, apart, n, n)
            rows(function(x, w) return F.rms_norm(x, { n }, w) end, count, n, dtype, from, apart, n)
          end
          rows(function(x) return F.cross_entropy(x, gb.arange(count, { device = x.device }):remainder(n),
            { reduction = "none" }) end, count, n, dtype,
            from, apart)
        end
      end)
    end
  end
  it("of two rows is the same alone and among many", function()
    local x = gb.arange(60 * 1000, { dtype = "float32" }):mul(0.37):sin():reshape(60, 1000):to("cuda")
    local y = F.layer_norm(x, { 1000 })
    expect(F.layer_norm(x:narrow(1, 59, 2):clone(), { 1000 }):cpu()):to_equal_bits(y:narrow(1, 59, 2):cpu())
  end)
end)

describe("gradients of parameters", function()
  -- More rows than workers, so that each adds up several.
  it("are sums over many rows", function()
    rows(function(x, w, b) return F.layer_norm(x, { 12 }, w, b) end, 2100, 12, "float32", 0, 0, 12, 12)
    rows(function(x, w, b) return F.layer_norm(x, { 700 }, w, b) end, 1370, 700, "float32", 0, 0, 700, 700)
    rows(function(x, w, b) return F.layer_norm(x, { 9000 }, w, b) end, 140, 9000, "float32", 0, 0, 9000, 9000)
  end)
  it("have the same bits each time", function()
    local function once()
      local w = gb.ones(513, { device = "cuda" }):requires_grad_()
      local x = gb.arange(1500 * 513, { dtype = "float32", device = "cuda" }):mul(0.11):sin():reshape(1500, 513)
      F.layer_norm(x, { 513 }, w):mul(x):sum():backward()
      return w.grad:cpu()
    end
    expect(once()):to_equal_bits(once())
  end)
end)

gb.test.finish()
