-- measure.lua - what our half of the table measures with: `gibbous FILE GROUP THREADS VOCABULARY [PRECISION]` prints a
-- line "name <tab> seconds" per case. peer.py prints the same names for PyTorch. A case runs for `budget` seconds, at
-- least three times, and counts by its median. GIBBOUS_CLOCK=cpu counts processor time instead, for one thread.

local gb = require "gibbous"

local measure = {
  group = arg[1], threads = tonumber(arg[2]), vocabulary = tonumber(arg[3]), spelled = arg[4] or "32-true",
}
local budget = 0.4
local clock = os.getenv "GIBBOUS_CLOCK" == "cpu" and os.clock or gb.clock
measure.precision = gb.amp.precision(measure.spelled)
-- What 16-bit products are made of in this precision, or float32.
measure.dtype = ({ ["bf16-mixed"] = "bfloat16", ["16-mixed"] = "float16" })[measure.spelled] or "float32"
gb.set_num_threads(measure.threads)
gb.manual_seed(1)

local function line(name, seconds) print(("%s\t%.9f"):format(name, seconds)) end

-- Print and return the median time of one call of f, which does its thing `inner` times. prepare (or nil) runs before
-- each, and is not counted.
function measure.report(name, f, inner, prepare)
  prepare = prepare or function() end
  prepare()
  f()
  local times, start = {}, gb.clock()
  repeat
    prepare()
    local before = clock()
    f()
    times[#times + 1] = clock() - before
  until #times >= 3 and gb.clock() - start > budget
  table.sort(times)
  local seconds = times[(#times + 1) // 2] / (inner or 1)
  line(name, seconds)
  return seconds
end

local copy, product -- seconds a byte that is read or written, and seconds a multiply-add

-- The shortest of some calls: floors are what a machine can do.
local function quickest(f)
  local least = math.huge
  for _ = 1, 9 do
    local before = clock()
    f()
    least = math.min(least, clock() - before)
  end
  return least
end

-- Print the least time of a case: of so many bytes read and written at the speed of a copy, and of so many
-- multiply-adds at that of a large product of float32 or of `dtype`, the same in all calls, the longer.
function measure.floor(name, bytes, products, dtype)
  if not copy then
    local from, to, n = gb.randn(1 << 24), gb.empty(1 << 24), 1024
    local a, b = gb.randn(n, n):to(dtype or "float32"), gb.randn(n, n):to(dtype or "float32")
    copy = quickest(function() to:copy_(from) end) / (8 << 24)
    product = quickest(function() local _ <close> = a:matmul(b) end) / n ^ 3
  end
  line("floor of " .. name, math.max(bytes * copy, products * product))
end

return measure
