-- test_lanes.lua - kernels that move several elements at once, against the CPU: lengths around every width, rows and views that begin anywhere,
-- and operands of different dtypes.
--
-- An element computed alone and one computed in a strip go through the same formula: where nothing is summed, both devices give the same bits, but
-- for the last one of functions of the C library.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local lengths = {}
for n = 0, 40 do lengths[#lengths + 1] = n end
for _, n in ipairs { 63, 64, 65, 127, 128, 129, 130, 257 } do lengths[#lengths + 1] = n end

-- n numbers from -5 to 5 that every dtype but uint8 holds exactly; of which the first `from` are cut off, so that the rest begins anywhere.
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
        same(function(x, y) return x:reshape(3, n) + y:float() end, { 3 * n, dtype, 1 }, { n, "float32", 2 })                 -- a row for all
        same(function(x, y) return x:reshape(3, n) * y:unsqueeze(2):float() end, { 3 * n, dtype, 1 }, { 3, "float16", 0 })    -- a number a row
        same(function(x) return x:reshape(3, n + 5):narrow(2, 3, n):neg() end, { 3 * (n + 5), "float32", 1 })                 -- rows of a view
        same(function(x) return x:reshape(3, n + 5):narrow(2, 3, n):float() end, { 3 * (n + 5), dtype, 1 })
        same(function(x) return x:reshape(3, n + 8):narrow(2, 5, n):contiguous() end, { 3 * (n + 8), dtype, 0 })              -- as it is stored
        same(function(x, y) return gb.cat({ x:reshape(3, n), y:reshape(3, 4) }, 2) end, { 3 * n, dtype, 1 }, { 12, dtype, 0 })
        same(function(x) return x:reshape(n, 3):t():float() + 1 end, { 3 * n, dtype, 0 })
      end
    end)
  end
end)

gb.test.finish()
